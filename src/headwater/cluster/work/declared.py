"""The frame of operators' work: its options and texts as fields of a dataclass, its plan, and its outcome."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from headwater.options import Option, options_of

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members

__all__ = ["NODE", "DeclaredWork", "WorkOutcome", "WorkPlan", "WorkRun"]

NODE = "NODE"
"""The metavar of options that name nodes: their values are addresses, read as the command line or the console does."""


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """The effect of work: lines for people, and rows of figures with their heading; `digest` distinguishes plans.

    Attributes:
        facts: the effect as JSON types.
        title: the heading of the rows. amount: the amount of work, in its unit.
        is_empty: True if there is nothing to do.
        ids: the ids of dropped collections, by name; one that is created again under a name has another id.
        bucket, uuids: the bucket that the work harms, and its uuids on the nodes, so that the confirmed work reaches no
            other bucket of this name. Empty for harmless work, or if no bucket was looked up.
    """

    lines: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    heading: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    title: str = ""
    amount: int = 0
    is_empty: bool = False
    ids: Mapping[str, str] = field(default_factory=dict)
    bucket: str = ""
    uuids: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        """A short digest of the plan as shown."""
        content = [self.heading, self.rows, self.lines, self.ids, self.bucket, sorted(self.uuids)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class WorkOutcome:
    """The result of work: a line for people, and the facts as JSON types.

    Attributes:
        state: done, or stopped before all was done.
        is_answer: True if the line answers a question, and reports no action.
        details: more lines, such as one for each loss.
    """

    line: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    state: str = "done"
    is_answer: bool = False
    details: tuple[str, ...] = ()


@dataclass(kw_only=True)
class WorkRun:
    """A run of work.

    Attributes:
        now: the present step. done, total: the progress, in the unit of the work; 0 of 0 while it is unknown.
        plan: the plan as it was confirmed; None if none was shown.
        stop: returns True to begin nothing more.
        report: called after each step.
    """

    now: str = "looking at the nodes"
    done: int = 0
    total: int = 0
    plan: WorkPlan | None = None
    stop: Callable[[], bool] = lambda: False
    report: Callable[[WorkRun], None] = lambda run: None

    def step(self, now: str, done: int, total: int) -> None:
        """Note the present step, and report it."""
        self.now, self.done, self.total = now, done, total
        self.report(self)


@dataclass(frozen=True)
class DeclaredWork:
    """Work of one kind. Its docstring is the help of its command; its fields are its options.

    A subclass has `plan` and `run`, which get the nodes to begin with, and raise ClusterError, OptionError,
    TransportError or StatusError where it is impossible.
    """

    KIND: ClassVar[str]
    """The name of this kind in addresses of pages; its last part is the name of the command."""
    HEADING: ClassVar[str]
    """The heading of its form."""
    EXAMPLES: ClassVar[tuple[str, ...]]
    EXITS: ClassVar[Mapping[int, str]] = {}
    """The meaning of exit statuses of its command in particular."""
    REMARKS: ClassVar[tuple[str, ...]] = ()
    """Sentences about any plan of this kind, for pages that ask for a confirmation."""
    HAS_DRY_RUN: ClassVar[bool] = False
    SHOWS_PLAN: ClassVar[bool] = False
    """True if its command looks for the plan first, shows it and does nothing where there is nothing to do."""
    ANNOUNCES: ClassVar[bool] = False
    """True if its command says what will be done, in the lines of the plan, before it asks."""
    ASKS: ClassVar[bool] = False
    """True if its command asks before it begins."""
    TITLE: ClassVar[str]
    """The work in a few words: a template with its fields in braces, as the next three are."""
    QUESTION: ClassVar[str] = "{0.title}?"
    """The question before it begins."""
    CONFIRMATION: ClassVar[str] = ""
    """The words to type on a page before it begins; empty if it can do no harm."""
    HARMED: ClassVar[str] = ""
    """The bucket whose uuid must not change between plan and work, with the nodes' bucket as {bucket}; empty for none.
    """
    HARMS: ClassVar[bool] = False
    """True if the work deletes documents."""
    UNIT: ClassVar[str] = ""
    """The unit of its progress; work with a unit can be stopped between two steps."""

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """Return the table of its options."""
        return options_of(cast("type", cls))

    @classmethod
    def about(cls) -> str:
        """Return the first paragraph of its help."""
        return " ".join((cls.__doc__ or "").partition("\n\n")[0].split())

    @property
    def title(self) -> str:
        """The work in a few words."""
        return self.TITLE.format(self)

    @property
    def question(self) -> str:
        """The question that people confirm before the work begins."""
        return self.QUESTION.format(self)

    @property
    def is_patient(self) -> bool:
        """True if the work waits for nodes that may still be starting."""
        return False

    def confirmation(self, bucket: str) -> str:
        """Return the words that people type on a page to confirm the work; empty for harmless work."""
        return self.CONFIRMATION.format(self, bucket=bucket)

    def harmed(self, bucket: str) -> str:
        """Return the bucket that the work changes, whose uuid must be the one that was shown; empty for none."""
        return self.HARMED.format(self, bucket=bucket)

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return the plan, without changing anything."""
        return WorkPlan((self.title,))

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Do the work, and report progress to `run`."""
        raise TypeError(f"{type(self).__name__} does nothing")
