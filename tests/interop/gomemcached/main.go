// Follows a bucket from the beginning until stdin ends; a line for each event, see tests/interop/follower.py.
//
//	follow PORT
//
// gomemcached is a connection to one node, and a feed of streams over it: which node has which vbucket, where to go on and
// what to do when a feed ends it leaves to its callers. This program does what those do (XDCR, the indexer): it keeps a
// position for each vbucket, and when a stream or a feed has ended it reads the map again and asks the owners.
package main

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/couchbase/gomemcached"
	memcached "github.com/couchbase/gomemcached/client"
)

const (
	forever          = uint64(0xffffffffffffffff)
	windowBytes      = 256 * 1024
	getClusterConfig = gomemcached.CommandCode(0xb5)
)

// position is where a vbucket's stream goes on from, and the node that sends it ("" if none does).
type position struct {
	uuid, seqno, from, to uint64
	owner                 string
}

// happening is an event of a node's feed; none if the feed has ended.
type happening struct {
	node  string
	event *memcached.UprEvent
}

// clusterMap is what this program reads of a map.
type clusterMap struct {
	RevEpoch, Rev int64
	Buckets       struct {
		Nodes    []string `json:"serverList"`
		Vbuckets [][]int  `json:"vBucketMap"`
	} `json:"vBucketServerMap"`
}

func (m clusterMap) isNewerThan(other clusterMap) bool {
	return m.RevEpoch > other.RevEpoch || m.RevEpoch == other.RevEpoch && m.Rev > other.Rev
}

type follower struct {
	positions  []position
	feeds      map[string]*memcached.UprFeed
	known      map[string]bool // every node of which a map told
	happenings chan happening
}

func say(format string, values ...interface{}) { fmt.Printf(format+"\n", values...) }

func (f *follower) tell(event string, e *memcached.UprEvent) {
	encode := base64.StdEncoding.EncodeToString
	f.positions[e.VBucket].seqno = e.Seqno
	say("%s %d %d %s %s", event, e.VBucket, e.Seqno, encode(e.Key), encode(e.Value))
}

func connect(node string) (*memcached.Client, error) {
	client, err := memcached.Connect("tcp", node)
	if err != nil {
		return nil, err
	}
	if _, err = client.Auth("Administrator", "password"); err == nil {
		_, err = client.SelectBucket("default")
	}
	if err != nil {
		client.Close()
	}
	return client, err
}

func readMap(node string) (found clusterMap, err error) {
	client, err := connect(node)
	if err != nil {
		return found, err
	}
	defer client.Close()
	answer, err := client.Send(&gomemcached.MCRequest{Opcode: getClusterConfig})
	if err != nil {
		return found, err
	}
	host, _, _ := strings.Cut(node, ":")
	return found, json.Unmarshal([]byte(strings.ReplaceAll(string(answer.Body), "$HOST", host)), &found)
}

// newestMap asks each node that is known; one that is dead keeps its place, as it may come back.
func (f *follower) newestMap() (newest clusterMap) {
	for node := range f.known {
		found, err := readMap(node)
		if err != nil {
			fmt.Fprintln(os.Stderr, node, err)
		} else if found.isNewerThan(newest) {
			newest = found
		}
	}
	for _, node := range newest.Buckets.Nodes {
		f.known[node] = true
	}
	return newest
}

// openAll asks the owners for each stream that nobody sends.
func (f *follower) openAll() {
	newest := f.newestMap()
	for len(f.positions) < len(newest.Buckets.Vbuckets) {
		f.positions = append(f.positions, position{})
	}
	for vbucket, row := range newest.Buckets.Vbuckets {
		if f.positions[vbucket].owner != "" || len(row) == 0 || row[0] < 0 {
			continue
		}
		if err := f.open(uint16(vbucket), newest.Buckets.Nodes[row[0]]); err != nil {
			fmt.Fprintln(os.Stderr, vbucket, err)
		}
	}
}

func (f *follower) open(vbucket uint16, node string) error {
	feed, err := f.feedOf(node)
	if err != nil {
		return err
	}
	at := &f.positions[vbucket]
	from, to := at.from, at.to
	if at.seqno >= at.to { // the snapshot is complete
		from, to = at.seqno, at.seqno
	}
	at.owner = node
	return feed.UprRequestStream(vbucket, vbucket, 0, at.uuid, at.seqno, forever, from, to)
}

func (f *follower) feedOf(node string) (*memcached.UprFeed, error) {
	if feed, there := f.feeds[node]; there {
		return feed, nil
	}
	client, err := connect(node)
	if err != nil {
		return nil, err
	}
	feed, err := client.NewUprFeed()
	if err != nil {
		return nil, err
	}
	// A connection takes the place of one of its own name.
	name := fmt.Sprintf("headwater-interop-%d-%d", os.Getpid(), time.Now().UnixNano())
	if err, _ = feed.UprOpenWithFeatures(name, 0, windowBytes, memcached.UprFeatures{EnableExpiry: true}); err != nil {
		return nil, err
	}
	if err = feed.StartFeed(); err != nil {
		return nil, err
	}
	f.feeds[node] = feed
	go func() {
		for event := range feed.C {
			f.happenings <- happening{node, event}
		}
		client.Close()
		f.happenings <- happening{node: node}
	}()
	return feed, nil
}

func (f *follower) take(what happening) {
	if what.event == nil {
		delete(f.feeds, what.node)
		for vbucket := range f.positions {
			f.ended(vbucket, what.node)
		}
		return
	}
	e := what.event
	at := &f.positions[e.VBucket]
	switch e.Opcode {
	case gomemcached.UPR_STREAMREQ:
		f.answered(at, e)
	case gomemcached.UPR_SNAPSHOT:
		at.from, at.to = e.SnapstartSeq, e.SnapendSeq
	case gomemcached.UPR_MUTATION:
		f.tell("mutation", e)
	case gomemcached.UPR_DELETION:
		f.tell("deletion", e)
	case gomemcached.UPR_EXPIRATION:
		f.tell("expiration", e)
	case gomemcached.UPR_STREAMEND:
		f.ended(int(e.VBucket), what.node)
	}
}

func (f *follower) answered(at *position, e *memcached.UprEvent) {
	switch {
	case e.Status == gomemcached.ROLLBACK:
		seqno := binary.BigEndian.Uint64(e.Value)
		say("rollback %d %d", e.VBucket, seqno)
		at.seqno, at.from, at.to, at.owner = seqno, seqno, seqno, ""
	case e.FailoverLog != nil:
		at.uuid, _, _ = e.FailoverLog.Latest()
		say("open %d", e.VBucket)
	default: // of what is refused the library ends the whole feed
		say("failure %d %v", e.VBucket, e.Error)
		at.owner = ""
	}
}

func (f *follower) ended(vbucket int, node string) {
	if f.positions[vbucket].owner == node {
		f.positions[vbucket].owner = ""
		say("end %d %s", vbucket, node)
	}
}

func (f *follower) isWhole() bool {
	for _, at := range f.positions {
		if at.owner == "" {
			return false
		}
	}
	return len(f.positions) > 0
}

func main() {
	f := &follower{
		feeds:      map[string]*memcached.UprFeed{},
		known:      map[string]bool{"127.0.0.1:" + os.Args[1]: true},
		happenings: make(chan happening, 1<<16),
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes our end
		os.Exit(0)
	}()
	f.openAll()
	for again := time.NewTicker(100 * time.Millisecond); ; {
		select {
		case what := <-f.happenings:
			f.take(what)
		case <-again.C:
			if !f.isWhole() {
				f.openAll()
			}
		}
	}
}
