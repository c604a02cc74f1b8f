// Follows a bucket from the beginning until stdin ends; a line for each event, see tests/interop/follower.py.
//
//	follow PORT [collections [SCOPE.COLLECTION]]
//	follow PORT versions
//
// The agent opens streams and reconnects; where to go on, and from where after a rollback, is the caller's to know.
package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const forever = gocbcore.SeqNo(0xffffffffffffffff)

var (
	agent    *gocbcore.DCPAgent
	shown    *gocbcore.OpenStreamFilterOptions // nil: everything
	printing sync.Mutex
)

func say(format string, values ...interface{}) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Printf(format+"\n", values...)
}

func base64Of(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

// follower is one vbucket's position, and its observer. The agent calls it from one goroutine at a time.
type follower struct {
	vbucket         uint16
	log             []gocbcore.FailoverEntry
	seqno, from, to uint64
}

func (f *follower) open() {
	var uuid gocbcore.VbUUID
	if len(f.log) > 0 {
		uuid = f.log[0].VbUUID
	}
	from, to := f.from, f.to
	if f.seqno >= f.to { // the snapshot is complete
		from, to = f.seqno, f.seqno
	}
	_, err := agent.OpenStream(f.vbucket, 0, uuid, gocbcore.SeqNo(f.seqno), forever, gocbcore.SeqNo(from),
		gocbcore.SeqNo(to), f, gocbcore.OpenStreamOptions{FilterOptions: shown}, f.opened)
	if err != nil {
		say("failure %d %v", f.vbucket, err)
	}
}

func (f *follower) opened(log []gocbcore.FailoverEntry, err error) {
	var rollback gocbcore.DCPRollbackError
	switch {
	case err == nil:
		f.log = log
		say("open %d", f.vbucket)
	case errors.As(err, &rollback):
		say("rollback %d %d", f.vbucket, rollback.SeqNo)
		f.seqno, f.from, f.to = uint64(rollback.SeqNo), uint64(rollback.SeqNo), uint64(rollback.SeqNo)
		f.open()
	default:
		say("failure %d %v", f.vbucket, err)
		time.AfterFunc(100*time.Millisecond, f.open)
	}
}

func (f *follower) tell(event string, seqno uint64, key, value []byte, collection uint32) {
	f.seqno = seqno
	say("%s %d %d %s %s %x", event, f.vbucket, seqno, base64Of(key), base64Of(value), collection)
}

func (f *follower) SnapshotMarker(m gocbcore.DcpSnapshotMarker) {
	f.from, f.to = m.StartSeqNo, m.EndSeqNo
}
func (f *follower) Mutation(m gocbcore.DcpMutation) {
	f.tell("mutation", m.SeqNo, m.Key, m.Value, m.CollectionID)
}
func (f *follower) Deletion(d gocbcore.DcpDeletion) {
	f.tell("deletion", d.SeqNo, d.Key, nil, d.CollectionID)
}
func (f *follower) Expiration(e gocbcore.DcpExpiration) {
	f.tell("expiration", e.SeqNo, e.Key, nil, e.CollectionID)
}

func (f *follower) End(_ gocbcore.DcpStreamEnd, err error) {
	say("end %d %v", f.vbucket, err)
	if !errors.Is(err, gocbcore.ErrDCPStreamClosed) {
		f.open()
	}
}

func (f *follower) CreateCollection(c gocbcore.DcpCollectionCreation) {
	f.seqno = c.SeqNo
	say("collection %d %x %s", f.vbucket, c.CollectionID, c.Key)
}
func (f *follower) DeleteCollection(c gocbcore.DcpCollectionDeletion) {
	f.seqno = c.SeqNo
	say("dropped %d %x", f.vbucket, c.CollectionID)
}
func (f *follower) CreateScope(s gocbcore.DcpScopeCreation)               { f.seqno = s.SeqNo }
func (f *follower) DeleteScope(s gocbcore.DcpScopeDeletion)               { f.seqno = s.SeqNo }
func (f *follower) FlushCollection(c gocbcore.DcpCollectionFlush)         { f.seqno = c.SeqNo }
func (f *follower) ModifyCollection(c gocbcore.DcpCollectionModification) { f.seqno = c.SeqNo }
func (f *follower) SeqNoAdvanced(s gocbcore.DcpSeqNoAdvanced)             { f.seqno = s.SeqNo }
func (f *follower) OSOSnapshot(gocbcore.DcpOSOSnapshot)                   {}

// idOf asks an agent of documents for the id of "scope.collection".
func idOf(port, name string) (uint32, error) {
	var config gocbcore.AgentConfig
	config.SeedConfig.MemdAddrs = []string{"127.0.0.1:" + port}
	config.BucketName = "default"
	config.SecurityConfig.Auth = gocbcore.PasswordAuthProvider{Username: "Administrator", Password: "password"}
	config.IoConfig.UseCollections = true
	documents, err := gocbcore.CreateAgent(&config)
	if err != nil {
		return 0, err
	}
	defer documents.Close()
	scope, collection, _ := strings.Cut(name, ".")
	found := make(chan error, 1)
	var id uint32
	_, err = documents.GetCollectionID(scope, collection, gocbcore.GetCollectionIDOptions{},
		func(result *gocbcore.GetCollectionIDResult, err error) {
			if err == nil {
				id = result.CollectionID
			}
			found <- err
		})
	if err != nil {
		return 0, err
	}
	return id, <-found
}

// run follows a node: all of it, or one collection.
func run(port string, names []string) error {
	var config gocbcore.DCPAgentConfig
	config.SeedConfig.MemdAddrs = []string{"127.0.0.1:" + port}
	config.BucketName = "default"
	config.SecurityConfig.Auth = gocbcore.PasswordAuthProvider{Username: "Administrator", Password: "password"}
	config.CompressionConfig.Enabled = true
	config.DCPConfig.UseExpiryOpcode = true
	config.DCPConfig.BufferSize = 256 * 1024
	config.IoConfig.UseCollections = len(names) > 0
	config.DCPConfig.UseChangeStreams = len(names) > 0 && names[0] == "versions"
	var err error
	if len(names) > 1 {
		id, err := idOf(port, names[1])
		if err != nil {
			return err
		}
		shown = &gocbcore.OpenStreamFilterOptions{CollectionIDs: []uint32{id}}
	}
	// A connection takes the place of one of its own name.
	name := fmt.Sprintf("headwater-interop-%d", os.Getpid())
	if agent, err = gocbcore.CreateDcpAgent(&config, name, memd.DcpOpenFlagProducer); err != nil {
		return err
	}
	ready := make(chan error)
	_, err = agent.WaitUntilReady(time.Now().Add(20*time.Second), gocbcore.WaitUntilReadyOptions{},
		func(_ *gocbcore.WaitUntilReadyResult, err error) { ready <- err })
	if err != nil {
		return err
	}
	if err = <-ready; err != nil {
		return err
	}
	snapshot, err := agent.ConfigSnapshot()
	if err != nil {
		return err
	}
	count, err := snapshot.NumVbuckets()
	if err != nil {
		return err
	}
	for vbucket := 0; vbucket < count; vbucket++ {
		(&follower{vbucket: uint16(vbucket)}).open()
	}
	_, err = io.Copy(io.Discard, os.Stdin) // until the test closes our end
	return err
}

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
