// Judges a history of headwater's clients by Porcupine, key by key.
//
//	judge -model plain -seconds 60 <history.jsonl
//
// reads what harness.linearizability.record writes and prints one JSON object for each key: its name, and "ok", "illegal"
// or "unknown" where the time was over. The rules are those of harness/linearizability/model.py, written a second time.
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

// A line of a history: an operation, a fault, or the error of the clocks.
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

func read(from io.Reader) ([]*line, float64, error) {
	lines, clockError := []*line{}, 1.5
	scanner := bufio.NewScanner(from)
	scanner.Buffer(make([]byte, 0, 1<<20), lineBytesMax)
	for number := 1; scanner.Scan(); number++ {
		found := &line{}
		if err := json.Unmarshal(scanner.Bytes(), found); err != nil {
			return nil, 0, fmt.Errorf("line %d is no part of a history: %w", number, err)
		}
		if found.ClockError != nil {
			clockError = *found.ClockError
		} else {
			lines = append(lines, found)
		}
	}
	return lines, clockError, scanner.Err()
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

func main() {
	kind := flag.String("model", "strict", "strict, or plain: a failover may take plain writes back")
	seconds := flag.Float64("seconds", 60, "for each key")
	flag.Parse()
	lines, clockError, err := read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	model := rules{plainMayBeLost: *kind == "plain", clockError: clockError}.model()
	told := json.NewEncoder(os.Stdout)
	for _, key := range keysOf(lines) {
		found := porcupine.CheckOperationsTimeout(model, operationsOf(lines, key), time.Duration(*seconds*1e9))
		verdict := map[porcupine.CheckResult]string{
			porcupine.Ok: "ok", porcupine.Illegal: "illegal", porcupine.Unknown: "unknown",
		}[found]
		if err := told.Encode(map[string]string{"key": key, "verdict": verdict}); err != nil {
			os.Exit(2)
		}
	}
}
