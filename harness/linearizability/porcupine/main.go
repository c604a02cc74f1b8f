// Judges histories of headwater's clients by Porcupine, key by key.
//
//	judge -model plain -seconds 60 <history.jsonl
//
// reads what harness.linearizability.record writes, any number of histories one behind the other, and prints one JSON
// object for each key: the number of its history, from 0, its name, and "ok", "illegal" or "unknown" where the time was
// over. The rules are those of harness/linearizability/model.py, written a second time.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// The longest line of a history that is read.
const lineBytesMax = 64 << 20

type result struct {
	Outcome  string  `json:"outcome"`
	Value    *string `json:"value"`
	Cas      uint64  `json:"cas"`
	IsLocked bool    `json:"is_locked"`
}

// A line of a history: an operation, a fault, or the error of the clocks, with which a history begins.
type line struct {
	ClockError *float64 `json:"clock_error_seconds"`

	Fault string    `json:"fault"`
	Began float64   `json:"began"`
	Ended *float64  `json:"ended"`
	Keys  *[]string `json:"keys"`

	Client   int      `json:"client"`
	Key      string   `json:"key"`
	Kind     string   `json:"kind"`
	Called   float64  `json:"called"`
	Answered *float64 `json:"answered"`
	Value    string   `json:"value"`
	Cas      uint64   `json:"cas"`
	Expiry   uint64   `json:"expiry"`
	Delta    uint64   `json:"delta"`
	Initial  *uint64  `json:"initial"`
	Seconds  float64  `json:"seconds"`
	Level    int      `json:"level"`
	Result   result   `json:"result"`
}

func (l *line) isMaybe() bool { return l.Result.Outcome == "maybe" }

func (l *line) begin() float64 {
	if l.Fault != "" {
		return l.Began
	}
	return l.Called
}

// The time after which it has no effect; infinite where nobody knows.
func (l *line) end() float64 {
	if l.Fault != "" {
		if l.Ended == nil {
			return math.Inf(1)
		}
		return *l.Ended
	}
	if l.Answered == nil || l.isMaybe() {
		return math.Inf(1)
	}
	return *l.Answered
}

func (l *line) concerns(key string) bool {
	if l.Fault == "" {
		return l.Key == key
	}
	if l.Keys == nil {
		return true
	}
	for _, each := range *l.Keys {
		if each == key {
			return true
		}
	}
	return false
}

// Whether it says anything about the document.
func (l *line) counts() bool {
	if l.Fault != "" {
		return true
	}
	return l.Result.Outcome != "refused" && !(l.Kind == "get" && l.isMaybe())
}

// A history: its operations and faults, and how far a node's idea of the time may be from that of the history.
type history struct {
	lines      []*line
	clockError float64
}

func read(from io.Reader) ([]*history, error) {
	found := []*history{}
	scanner := bufio.NewScanner(from)
	scanner.Buffer(make([]byte, 0, 1<<20), lineBytesMax)
	for number := 1; scanner.Scan(); number++ {
		told := &line{}
		if err := json.Unmarshal(scanner.Bytes(), told); err != nil {
			return nil, fmt.Errorf("line %d is no part of a history: %w", number, err)
		}
		if told.ClockError != nil {
			found = append(found, &history{clockError: *told.ClockError})
		} else if len(found) == 0 {
			return nil, fmt.Errorf("line %d is no part of a history: none has begun", number)
		} else {
			newest := found[len(found)-1]
			newest.lines = append(newest.lines, told)
		}
	}
	return found, scanner.Err()
}

func keysOf(lines []*line) []string {
	known := map[string]bool{}
	for _, each := range lines {
		if each.Fault == "" {
			known[each.Key] = true
		}
	}
	keys := make([]string, 0, len(known))
	for key := range known {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// The operations of one key as Porcupine has them: times are ranks, so that no two of them become the same.
func operationsOf(lines []*line, key string) []porcupine.Operation {
	times, concerned := []float64{}, []*line{}
	for _, each := range lines {
		if each.concerns(key) && each.counts() {
			concerned = append(concerned, each)
			times = append(times, each.begin())
			if !math.IsInf(each.end(), 1) {
				times = append(times, each.end())
			}
		}
	}
	sort.Float64s(times)
	rank := func(moment float64) int64 {
		if math.IsInf(moment, 1) {
			return int64(len(times))
		}
		return int64(sort.SearchFloat64s(times, moment))
	}
	operations := []porcupine.Operation{}
	for _, each := range concerned {
		operations = append(operations, porcupine.Operation{
			ClientId: each.Client, Input: each, Call: rank(each.begin()), Output: each, Return: rank(each.end()),
		})
	}
	return operations
}

// The verdict about a key of a history.
type verdict struct {
	History int    `json:"history"`
	Key     string `json:"key"`
	Verdict string `json:"verdict"`
}

var words = map[porcupine.CheckResult]string{
	porcupine.Ok: "ok", porcupine.Illegal: "illegal", porcupine.Unknown: "unknown",
}

func main() {
	kind := flag.String("model", "strict", "strict, or plain: a failover may take plain writes back")
	seconds := flag.Float64("seconds", 60, "for each key")
	flag.Parse()
	histories, err := read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	told := json.NewEncoder(os.Stdout)
	for number, each := range histories {
		model := rules{plainMayBeLost: *kind == "plain", clockError: each.clockError}.model()
		for _, key := range keysOf(each.lines) {
			most := time.Duration(*seconds * 1e9)
			found := porcupine.CheckOperationsTimeout(model, operationsOf(each.lines, key), most)
			if err := told.Encode(verdict{number, key, words[found]}); err != nil {
				os.Exit(2)
			}
		}
	}
}
