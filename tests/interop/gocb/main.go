// What an application does with Couchbase's Go SDK; see tests/interop/sdk_story.py, which tells the story and checks it.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/couchbase/gocb/v2"
)

const number = 500

type object = map[string]interface{}

func must[T any](value T, err error) T {
	done(err)
	return value
}

func done(err error) {
	if err != nil {
		panic(err)
	}
}

func ok(holds bool, name string) {
	if !holds {
		panic("not so: " + name)
	}
}

func passed(name string) { fmt.Println("check " + name) }

func refused(err, as error, name string) {
	if !errors.Is(err, as) {
		panic(fmt.Sprintf("%s: wanted %v, got %v", name, as, err))
	}
}

func connect(arguments []string) *gocb.Cluster {
	options := gocb.ClusterOptions{
		Authenticator: gocb.PasswordAuthenticator{Username: arguments[1], Password: arguments[2]},
		TimeoutsConfig: gocb.TimeoutsConfig{
			ConnectTimeout: time.Minute, KVTimeout: time.Minute, ManagementTimeout: time.Minute,
		},
	}
	if len(arguments) > 3 {
		options.SecurityConfig.TLSRootCAs = x509.NewCertPool()
		ok(options.SecurityConfig.TLSRootCAs.AppendCertsFromPEM(must(os.ReadFile(arguments[3]))), "the trust store")
	}
	if len(arguments) > 5 {
		pair := must(tls.LoadX509KeyPair(arguments[4], arguments[5]))
		options.Authenticator = gocb.CertificateAuthenticator{ClientCertificate: &pair}
	}
	return must(gocb.Connect(arguments[0], options))
}

func main() {
	cluster := connect(os.Args[1:])
	bucket := cluster.Bucket("default")
	services := &gocb.WaitUntilReadyOptions{ServiceTypes: []gocb.ServiceType{gocb.ServiceTypeKeyValue}}
	done(bucket.WaitUntilReady(time.Minute, services))
	manager := bucket.CollectionsV2()
	done(manager.CreateScope("market", nil))
	done(manager.CreateCollection("market", "fruit", nil, nil))
	hour := &gocb.CreateCollectionSettings{MaxExpiry: time.Hour}
	done(manager.CreateCollection("market", "passing", hour, nil))
	done(manager.CreateCollection("market", "gone", nil, nil))
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')

	plain, fruit := bucket.DefaultCollection(), bucket.Scope("market").Collection("fruit")
	many("_default._default", plain)
	many("market.fruit", fruit)
	single(plain, fruit)
	parts(fruit)
	durable(fruit)
	transactions(cluster, fruit)
	collections(bucket, manager)
	fmt.Println("done")
	cluster.Close(nil)
}

// many reads what is ours to read, stores and removes.
func many(name string, documents *gocb.Collection) {
	for n := 0; n < number; n++ {
		key := "ours-" + strconv.Itoa(n)
		var found interface{}
		done(must(documents.Get(key, nil)).Content(&found))
		fmt.Println("read", name, key, base64.StdEncoding.EncodeToString(must(json.Marshal(found))))
	}
	for n := 0; n < number; n++ {
		key := "theirs-" + strconv.Itoa(n)
		must(documents.Upsert(key, object{"n": n, "in": name}, nil))
		if n%10 == 0 {
			must(documents.Remove(key, nil))
		}
	}
}

func single(plain, fruit *gocb.Collection) {
	_, err := plain.Get("nobody", nil)
	refused(err, gocb.ErrDocumentNotFound, "get")
	_, err = plain.Replace("nobody", 1, nil)
	refused(err, gocb.ErrDocumentNotFound, "replace")
	ok(!must(plain.Exists("nobody", nil)).Exists(), "missing")
	passed("missing")

	first := must(plain.Insert("apple", object{"n": 1}, nil))
	_, err = plain.Insert("apple", object{"n": 1}, nil)
	refused(err, gocb.ErrDocumentExists, "insert")
	ok(must(plain.Exists("apple", nil)).Exists(), "exists")
	passed("exists")

	must(plain.Replace("apple", object{"n": 2}, &gocb.ReplaceOptions{Cas: first.Cas()}))
	_, err = plain.Replace("apple", object{"n": 9}, &gocb.ReplaceOptions{Cas: first.Cas()})
	refused(err, gocb.ErrCasMismatch, "replace")
	_, err = plain.Remove("apple", &gocb.RemoveOptions{Cas: first.Cas()})
	refused(err, gocb.ErrCasMismatch, "remove")
	passed("cas")

	locked := must(plain.GetAndLock("apple", 30*time.Second, nil))
	_, err = plain.Upsert("apple", 9, &gocb.UpsertOptions{Timeout: time.Second})
	ok(err != nil, "a locked document is kept")
	must(plain.Replace("apple", object{"n": 3}, &gocb.ReplaceOptions{Cas: locked.Cas()}))
	locked = must(plain.GetAndLock("apple", 30*time.Second, nil))
	done(plain.Unlock("apple", locked.Cas(), nil))
	passed("locked")

	must(fruit.Upsert("lime", object{"a": object{"b": 1}, "c": 2, "d": 3}, &gocb.UpsertOptions{Expiry: time.Hour}))
	ends := must(fruit.Get("lime", &gocb.GetOptions{WithExpiry: true})).ExpiryTime()
	left := time.Until(ends)
	ok(left > 50*time.Minute && left < 70*time.Minute, "expiry")
	must(fruit.Touch("lime", 2*time.Hour, nil))
	ends = must(fruit.Get("lime", &gocb.GetOptions{WithExpiry: true})).ExpiryTime()
	ok(time.Until(ends) > 110*time.Minute, "touch")
	must(fruit.Replace("lime", object{"a": object{"b": 1}, "c": 2, "d": 3}, &gocb.ReplaceOptions{PreserveExpiry: true}))
	ends = must(fruit.Get("lime", &gocb.GetOptions{WithExpiry: true})).ExpiryTime()
	ok(time.Until(ends) > 110*time.Minute, "preserve")
	passed("expiry")

	counters := plain.Binary()
	ok(must(counters.Increment("visits", &gocb.IncrementOptions{Initial: 10, Delta: 1})).Content() == 10, "initial")
	ok(must(counters.Increment("visits", &gocb.IncrementOptions{Delta: 7})).Content() == 17, "increment")
	ok(must(counters.Decrement("visits", &gocb.DecrementOptions{Delta: 2})).Content() == 15, "decrement")
	passed("counter")

	raw := gocb.NewRawBinaryTranscoder()
	must(fruit.Upsert("line", []byte("b"), &gocb.UpsertOptions{Transcoder: raw}))
	must(fruit.Binary().Append("line", []byte("c"), nil))
	must(fruit.Binary().Prepend("line", []byte("a"), nil))
	var line []byte
	done(must(fruit.Get("line", &gocb.GetOptions{Transcoder: raw})).Content(&line))
	ok(string(line) == "abc", "append")
	passed("binary")

	var projected struct {
		A struct{ B int }
		C int
		D *int
	}
	done(must(fruit.Get("lime", &gocb.GetOptions{Project: []string{"a.b", "c"}})).Content(&projected))
	ok(projected.A.B == 1 && projected.C == 2 && projected.D == nil, "projection")
	passed("projection")
}

func parts(fruit *gocb.Collection) {
	must(fruit.Upsert("parts", object{"name": "plum", "tags": []string{"a"}, "stock": object{"n": 4}}, nil))
	found := must(fruit.LookupIn("parts", []gocb.LookupInSpec{
		gocb.GetSpec("name", nil), gocb.ExistsSpec("none", nil), gocb.CountSpec("tags", nil),
		gocb.GetSpec("$document.CAS", &gocb.GetSpecOptions{IsXattr: true}),
	}, nil))
	var name, cas string
	var count int
	done(found.ContentAt(0, &name))
	done(found.ContentAt(2, &count))
	done(found.ContentAt(3, &cas))
	ok(name == "plum" && !found.Exists(1) && count == 1 && len(cas) == 18, "lookup")
	passed("lookup")

	changed := must(fruit.MutateIn("parts", []gocb.MutateInSpec{
		gocb.UpsertSpec("owner.id", "me", &gocb.UpsertSpecOptions{IsXattr: true, CreatePath: true}),
		gocb.UpsertSpec("stock.place.row", 7, &gocb.UpsertSpecOptions{CreatePath: true}),
		gocb.ArrayAppendSpec("tags", "b", nil),
		gocb.ArrayAddUniqueSpec("tags", "c", nil),
		gocb.IncrementSpec("stock.n", 38, nil),
		gocb.RemoveSpec("name", nil),
	}, nil))
	done(changed.ContentAt(4, &count))
	ok(count == 42, "mutate")
	passed("mutate")

	var owner map[string]string
	attributes := []gocb.LookupInSpec{gocb.GetSpec("owner", &gocb.GetSpecOptions{IsXattr: true})}
	done(must(fruit.LookupIn("parts", attributes, nil)).ContentAt(0, &owner))
	ok(owner["id"] == "me", "attributes")
	passed("attributes")

	_, err := fruit.MutateIn("parts", []gocb.MutateInSpec{gocb.ReplaceSpec("none", 1, nil)}, nil)
	refused(err, gocb.ErrPathNotFound, "replace")
	_, err = fruit.MutateIn("parts", []gocb.MutateInSpec{gocb.ArrayAppendSpec("stock", 1, nil)}, nil)
	refused(err, gocb.ErrPathMismatch, "append")
	_, err = fruit.MutateIn("parts", []gocb.MutateInSpec{gocb.InsertSpec("tags", 1, nil)}, nil)
	refused(err, gocb.ErrPathExists, "insert")
	_, err = fruit.MutateIn("nobody", []gocb.MutateInSpec{gocb.UpsertSpec("a", 1, nil)}, nil)
	refused(err, gocb.ErrDocumentNotFound, "no document")
	missing := must(fruit.LookupIn("parts", []gocb.LookupInSpec{gocb.GetSpec("none", nil)}, nil))
	refused(missing.ContentAt(0, &name), gocb.ErrPathNotFound, "lookup")
	passed("paths")

	var sixteen []gocb.MutateInSpec
	for n := 0; n < 16; n++ {
		sixteen = append(sixteen, gocb.UpsertSpec("p"+strconv.Itoa(n), n, nil))
	}
	upsert := &gocb.MutateInOptions{StoreSemantic: gocb.StoreSemanticsUpsert}
	must(fruit.MutateIn("many", sixteen, upsert))
	_, err = fruit.MutateIn("many", append(sixteen, gocb.UpsertSpec("p16", 16, nil)), upsert)
	ok(err != nil, "seventeen")
	passed("sixteen")
}

func durable(fruit *gocb.Collection) {
	for n, level := range []gocb.DurabilityLevel{gocb.DurabilityLevelMajority,
		gocb.DurabilityLevelMajorityAndPersistOnMaster, gocb.DurabilityLevelPersistToMajority} {
		must(fruit.Upsert("durable", object{"n": n + 1}, &gocb.UpsertOptions{DurabilityLevel: level}))
		must(fruit.Upsert("passed", object{"n": n}, &gocb.UpsertOptions{DurabilityLevel: level}))
		must(fruit.Remove("passed", &gocb.RemoveOptions{DurabilityLevel: level}))
	}
	majority := &gocb.MutateInOptions{DurabilityLevel: gocb.DurabilityLevelMajority}
	must(fruit.MutateIn("durable", []gocb.MutateInSpec{gocb.IncrementSpec("n", 1, nil)}, majority))
	var found struct{ N int }
	done(must(fruit.Get("durable", nil)).Content(&found))
	ok(found.N == 4 && !must(fruit.Exists("passed", nil)).Exists(), "durable")
	passed("durable")

	keys := map[string]bool{}
	scan := must(fruit.Scan(gocb.NewRangeScanForPrefix("theirs-"), &gocb.ScanOptions{IDsOnly: true}))
	for item := scan.Next(); item != nil; item = scan.Next() {
		keys[item.ID()] = true
	}
	done(scan.Err())
	scan = must(fruit.Scan(gocb.NewRangeScanForPrefix("ours-1"), nil))
	counted := 0
	for item := scan.Next(); item != nil; item = scan.Next() {
		done(item.Content(&found))
		ok(item.ID() == "ours-"+strconv.Itoa(found.N), "scanned")
		counted++
	}
	done(scan.Err())
	ok(len(keys) == number-number/10 && keys["theirs-1"] && !keys["theirs-10"] && counted == 111, "scanned")
	passed("scanned")
}

func transactions(cluster *gocb.Cluster, fruit *gocb.Collection) {
	run := func(work func(attempt *gocb.TransactionAttemptContext)) error {
		_, err := cluster.Transactions().Run(func(attempt *gocb.TransactionAttemptContext) (failed error) {
			defer func() {
				if found := recover(); found != nil {
					failed = found.(error)
				}
			}()
			work(attempt)
			return nil
		}, nil)
		return err
	}
	n := func(key string) int {
		var found struct{ N int }
		done(must(fruit.Get(key, nil)).Content(&found))
		return found.N
	}
	done(run(func(attempt *gocb.TransactionAttemptContext) {
		must(attempt.Insert(fruit, "bank-a", object{"n": 10}))
		must(attempt.Insert(fruit, "bank-b", object{"n": 0}))
	}))
	done(run(func(attempt *gocb.TransactionAttemptContext) {
		one, other := must(attempt.Get(fruit, "bank-a")), must(attempt.Get(fruit, "bank-b"))
		must(attempt.Replace(one, object{"n": 7}))
		must(attempt.Replace(other, object{"n": 3}))
	}))
	ok(n("bank-a") == 7 && n("bank-b") == 3, "transacted")
	err := run(func(attempt *gocb.TransactionAttemptContext) {
		must(attempt.Replace(must(attempt.Get(fruit, "bank-a")), object{"n": -1}))
		must(attempt.Insert(fruit, "bank-c", object{"n": 1}))
		panic(errors.New("the application's own"))
	})
	ok(err != nil && n("bank-a") == 7 && !must(fruit.Exists("bank-c", nil)).Exists(), "rolled back")
	done(run(func(attempt *gocb.TransactionAttemptContext) {
		done(attempt.Remove(must(attempt.Get(fruit, "bank-b"))))
	}))
	ok(!must(fruit.Exists("bank-b", nil)).Exists(), "removed")
	passed("transacted")
}

func collections(bucket *gocb.Bucket, manager *gocb.CollectionManagerV2) {
	nowhere := bucket.Scope("market").Collection("nowhere")
	_, err := nowhere.Get("apple", &gocb.GetOptions{Timeout: 3 * time.Second})
	ok(err != nil && !errors.Is(err, gocb.ErrDocumentNotFound), "unknown")
	passed("unknown")

	passing := bucket.Scope("market").Collection("passing")
	must(passing.Upsert("pear", object{"n": 1}, nil))
	left := time.Until(must(passing.Get("pear", &gocb.GetOptions{WithExpiry: true})).ExpiryTime())
	ok(left > 50*time.Minute && left < 70*time.Minute, "passing")
	passed("passing")

	names := map[string]bool{}
	for _, scope := range must(manager.GetAllScopes(nil)) {
		for _, collection := range scope.Collections {
			names[scope.Name+"."+collection.Name] = true
		}
	}
	ok(len(names) == 4 && names["market.fruit"] && names["market.gone"] && names["_default._default"], "listed")
	refused(manager.CreateScope("market", nil), gocb.ErrScopeExists, "scope")
	refused(manager.CreateCollection("market", "fruit", nil, nil), gocb.ErrCollectionExists, "collection")
	refused(manager.CreateCollection("nowhere", "fruit", nil, nil), gocb.ErrScopeNotFound, "no scope")
	passed("listed")

	shorter := gocb.UpdateCollectionSettings{MaxExpiry: time.Minute}
	ok(manager.UpdateCollection("market", "passing", shorter, nil) != nil, "altered")
	passed("altered")

	gone := bucket.Scope("market").Collection("gone")
	must(gone.Upsert("pear", object{"n": 1}, nil))
	done(manager.DropCollection("market", "gone", nil))
	refused(manager.DropCollection("market", "gone", nil), gocb.ErrCollectionNotFound, "drop")
	_, err = gone.Get("pear", &gocb.GetOptions{Timeout: 3 * time.Second})
	ok(err != nil, "dropped")
	passed("dropped")
}
