package main

import (
	"hash/maphash"
	"math"
	"strconv"

	"github.com/anishathalye/porcupine"
)

// A version of a document, or of none. cas 0: nobody was told.
type version struct {
	exists bool
	value  string
	cas    uint64
	expiry uint64
}

type lock struct {
	token            uint64
	earliest, latest float64
	isOver           bool // it has ended, and the document is as it was then
}

// What is there, and what a failover may bring back, oldest first. States are never changed once they are made.
type state struct {
	now    version
	locked *lock
	older  []version
}

type rules struct {
	plainMayBeLost bool
	clockError     float64
}

func (s state) isLocked() bool { return s.locked != nil && !s.locked.isOver }

// The state after its lock has ended by itself.
func (s state) unlocked() state {
	if s.locked == nil {
		return s
	}
	over := *s.locked
	over.isOver = true
	return state{now: s.now, locked: &over, older: s.older}
}

var seed = maphash.MakeSeed()

func (r rules) model() porcupine.Model {
	found := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{state{}} },
		Step: func(before, input, _ interface{}) []interface{} {
			steps := []interface{}{}
			for _, each := range r.steps(before.(state), input.(*line)) {
				steps = append(steps, each)
			}
			return steps
		},
		Equal: func(one, other interface{}) bool { return equal(one.(state), other.(state)) },
		Hash: func(of interface{}) uint64 {
			found := of.(state)
			return maphash.String(seed, found.now.value) ^ found.now.cas ^ uint64(len(found.older))<<56
		},
	}
	return found.ToModel()
}

func equal(one, other state) bool {
	if one.now != other.now || len(one.older) != len(other.older) || (one.locked == nil) != (other.locked == nil) {
		return false
	}
	if one.locked != nil && *one.locked != *other.locked {
		return false
	}
	for at, each := range one.older {
		if each != other.older[at] {
			return false
		}
	}
	return true
}

// The states that may follow. A fault and a "maybe" may have no effect at all, which is one of them.
func (r rules) steps(before state, asked *line) []state {
	if asked.Fault != "" {
		return afterFault(before, asked)
	}
	after := []state{}
	if asked.isMaybe() {
		after = append(after, before)
	}
	for _, seen := range r.seen(before, asked) {
		outcome, next, shown := r.effect(seen, asked)
		if asked.isMaybe() {
			// That time has passed is for an answer to show: who had none may have come much later.
			if !equal(next, seen) {
				after = append(after, next)
			}
		} else if outcome == asked.Result.Outcome && agrees(&next, shown, asked) {
			after = append(after, next)
		}
	}
	return after
}

func afterFault(before state, asked *line) []state {
	after := []state{before, before.unlocked()}
	if asked.Fault == "failover" {
		for at, each := range before.older {
			after = append(after, state{now: each, older: before.older[:at:at]})
		}
	}
	return after
}

// What a node may see, whose clock is wrong by as much as may be.
func (r rules) seen(before state, asked *line) []state {
	first, last := asked.Called-r.clockError, asked.end()+r.clockError
	found := []state{}
	if before.now.exists && before.now.expiry > 0 {
		expiry := float64(before.now.expiry)
		if last >= expiry {
			found = append(found, r.next(before, version{}, false))
		}
		if first >= expiry {
			return found
		}
	}
	if !before.isLocked() || first <= before.locked.latest {
		found = append(found, before)
	}
	if before.isLocked() && last >= before.locked.earliest {
		found = append(found, before.unlocked())
	}
	return found
}

func (r rules) next(before state, now version, isDurable bool) state {
	if isDurable || !r.plainMayBeLost {
		return state{now: now}
	}
	older := append(before.older[:len(before.older):len(before.older)], before.now)
	return state{now: now, older: older}
}

// The outcome of an operation, the state behind it, and the version that its answer shows, if any.
func (r rules) effect(before state, asked *line) (string, state, *version) {
	if !before.now.exists {
		return r.effectOnNothing(before, asked)
	}
	cas := asked.Cas
	switch asked.Kind {
	case "get":
		return "done", before, &before.now
	case "get_and_lock":
		if before.isLocked() {
			return "locked", before, nil
		}
		after := before
		after.locked = r.lockOf(asked)
		return "done", after, &before.now
	case "unlock":
		if !before.isLocked() {
			return "not_locked", before, nil
		}
		if before.locked.token == 0 || before.locked.token != cas {
			return "locked", before, nil
		}
		return "done", state{now: before.now, older: before.older}, &before.now
	}
	if before.isLocked() {
		if cas == 0 || cas != before.locked.token {
			return "locked", before, nil
		}
		cas = 0
	} else if before.locked != nil && cas != 0 && cas == before.locked.token && asked.Level > 0 {
		// It may have been accepted while the lock stood; nobody else can write before it is committed.
		if asked.Result.Outcome != "exists" && asked.Called-r.clockError <= before.locked.latest {
			cas = 0
		}
	}
	if asked.Kind == "add" || (cas != 0 && !mayBe(before.now, cas, asked)) {
		return "exists", before, nil
	}
	now := version{exists: true, value: asked.Value, cas: casOf(asked), expiry: asked.Expiry}
	switch asked.Kind {
	case "delete":
		return "done", r.next(before, version{}, asked.Level > 0), nil
	case "append":
		now.value, now.expiry = before.now.value+asked.Value, before.now.expiry
	case "touch", "get_and_touch":
		if before.now.expiry == asked.Expiry {
			return "done", before, &before.now
		}
		now.value = before.now.value
	case "increment", "decrement":
		number, err := strconv.ParseUint(before.now.value, 10, 64)
		if err != nil || len(before.now.value) > 20 || before.now.value[0] == '+' {
			return "not_a_number", before, nil
		}
		now.value, now.expiry = strconv.FormatUint(counted(number, asked), 10), before.now.expiry
	}
	return "done", r.next(before, now, asked.Level > 0), &now
}

func (r rules) effectOnNothing(before state, asked *line) (string, state, *version) {
	now := version{exists: true, value: asked.Value, cas: casOf(asked), expiry: asked.Expiry}
	switch asked.Kind {
	case "append":
		return "not_stored", before, nil
	case "set":
		if asked.Cas != 0 {
			return "missing", before, nil
		}
	case "increment", "decrement":
		if asked.Initial == nil {
			return "missing", before, nil
		}
		now.value = strconv.FormatUint(*asked.Initial, 10)
	case "add":
	default:
		return "missing", before, nil
	}
	return "done", r.next(before, now, asked.Level > 0), &now
}

func counted(number uint64, asked *line) uint64 {
	if asked.Kind == "increment" {
		return number + asked.Delta
	}
	if asked.Delta > number {
		return 0
	}
	return number - asked.Delta
}

func casOf(asked *line) uint64 {
	if asked.Result.Outcome == "done" {
		return asked.Result.Cas
	}
	return 0
}

// A CAS that nobody was told may be the one that was given, or another: the answer says which.
func mayBe(now version, cas uint64, asked *line) bool {
	if now.cas == 0 {
		return asked.Result.Outcome != "exists"
	}
	return now.cas == cas
}

func (r rules) lockOf(asked *line) *lock {
	seconds := asked.Seconds
	if seconds == 0 {
		seconds = 15
	}
	seconds = math.Min(seconds, 30)
	return &lock{casOf(asked), asked.Called + seconds - r.clockError, asked.end() + seconds + r.clockError, false}
}

// Whether an answer shows what is there; the state behind it knows the CAS that was shown.
func agrees(after *state, shown *version, asked *line) bool {
	if shown == nil {
		return true
	}
	told := asked.Result
	switch asked.Kind {
	case "get", "get_and_lock", "get_and_touch", "increment", "decrement":
		if told.Value != nil && *told.Value != shown.value {
			return false
		}
	}
	if asked.Kind == "get" && told.IsLocked != after.isLocked() {
		return false
	}
	switch asked.Kind {
	case "get", "touch", "get_and_touch":
		if told.Cas != 0 {
			if shown.cas != 0 && shown.cas != told.Cas {
				return false
			}
			after.now.cas = told.Cas
		}
	}
	return true
}
