// Follows a collection with go-dcp until stdin ends; a line for each event, see tests/interop/follower.py.
//
//	follow PORT SCOPE COLLECTION
//
// Where it goes on from, go-dcp keeps in documents of the bucket: in their extended attributes, set by sub-document.
package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/Trendyol/go-dcp"
	"github.com/Trendyol/go-dcp/config"
	"github.com/Trendyol/go-dcp/models"
)

var printing sync.Mutex

func say(format string, values ...interface{}) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Printf(format+"\n", values...)
}

func tell(event string, vbucket uint16, seqno uint64, key, value []byte, collection uint32) {
	encode := base64.StdEncoding.EncodeToString
	say("%s %d %d %s %s %x", event, vbucket, seqno, encode(key), encode(value), collection)
}

func listen(context *models.ListenerContext) {
	switch change := context.Event.(type) {
	case models.DcpMutation:
		tell("mutation", change.VbID, change.SeqNo, change.Key, change.Value, change.CollectionID)
	case models.DcpDeletion:
		tell("deletion", change.VbID, change.SeqNo, change.Key, nil, change.CollectionID)
	case models.DcpExpiration:
		tell("expiration", change.VbID, change.SeqNo, change.Key, nil, change.CollectionID)
	}
	context.Ack()
}

func main() {
	changes, err := dcp.NewDcp(&config.Dcp{
		Hosts:           []string{"http://127.0.0.1:" + os.Args[1]},
		Username:        "Administrator",
		Password:        "password",
		BucketName:      "default",
		ScopeName:       os.Args[2],
		CollectionNames: []string{os.Args[3]},
		API:             config.API{Disabled: true},
		Checkpoint:      config.Checkpoint{Interval: time.Second},
		Metadata:        config.Metadata{Type: config.MetadataTypeCouchbase},
		Dcp: config.ExternalDcp{Group: config.DCPGroup{
			Name:       "interop",
			Membership: config.DCPGroupMembership{Type: "static", MemberNumber: 1, TotalMembers: 1},
		}},
	}, listen)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		<-changes.WaitUntilReady()
		say("open")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes our end
		changes.Close()
	}()
	changes.Start()
}
