"""Work on users: adding and removing them, and changing their roles and passwords.

It has no plan that is shown, since a page with it would carry a password: its form on a page takes effect at once. The
same change is possible in the folder of a node's store, without a node (`edit`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headwater.cluster.work.declared import DeclaredWork, WorkOutcome, WorkPlan, WorkRun
from headwater.counting import several
from headwater.errors import OptionError
from headwater.options import option

if TYPE_CHECKING:
    from headwater.accounts.users import Account
    from headwater.client.routing import Address
    from headwater.cluster.members import Members
    from headwater.cluster.users import Edit, Spread

__all__ = ["USER_WORKS", "AddUser", "ChangePassword", "ChangeRoles", "RemoveUser", "WorkOnUser"]

NAME = "The user."
PASSWORD = "The new password."  # noqa: S105 - the help of the option
FORCE = "Also if nobody is left who may do everything."
NOBODY = "there is no such user, or nobody would be left who may do everything"
ORDINARY = "read,write,stream,monitor"


@dataclass(frozen=True)
class WorkOnUser(DeclaredWork):
    """Work on the account of one user: `edit` changes the accounts, wherever they are."""

    DONE: ClassVar[str]
    """The message on a page about finished work, with the user's name as {}."""
    IS_NEW: ClassVar[bool] = False
    """True if there is no such user yet."""

    name: str = option(..., NAME, positional=True, metavar="NAME", allowed="the name of a user")

    @classmethod
    def needs_password(cls) -> bool:
        """Return True if a new password is one of its options."""
        return any(option.secret for option in cls.options())

    def check(self, accounts: Mapping[str, Account]) -> None:
        """Check that the user exists or, for a new one, does not. Raises WorkRefused, OptionError."""
        from headwater.accounts.users import account_of, check_new

        (check_new if self.IS_NEW else account_of)(accounts, self.name)

    def edit(self, accounts: dict[str, Account]) -> None:
        """Change the accounts. Raises WorkRefused or OptionError; the caller drops the changed accounts then."""
        raise TypeError(f"{type(self).__name__} changes nothing")

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return a plan with the revision of the list of users: the work refuses a user who is changed after it."""
        from headwater.cluster.users import current

        return shown_plan((await current(members, seeds)).revision)

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Change the users on all nodes; members that are away request the list when they are back."""
        from headwater.cluster.users import change

        spread = await change(members, seeds, self._edit_of(run.plan))
        return self.outcome(len(spread.users.users), spread)

    def _edit_of(self, confirmed_plan: WorkPlan | None) -> Edit:
        """Return the change of a list of users.

        The change refuses a user who was changed after the plan was shown.
        """
        from headwater.accounts.users import on_list

        edit = on_list(self.edit)

        def checked(users: Any) -> Any:
            entry = users.entries.get(self.name)
            if (
                confirmed_plan is not None
                and entry is not None
                and entry.revision > int(confirmed_plan.ids["revision"])
            ):
                raise OptionError("user", self.name[:128], "as the page showed; it was changed since: look at it again")
            return edit(users)

        return checked

    def outcome(self, user_count: int, spread: Spread | None = None) -> WorkOutcome:
        """Return the outcome of finished work.

        Args:
            user_count: the number of users after it.
            spread: the nodes that have the change; None for a folder.
        """
        facts: dict[str, Any] = {"user": self.name, **self.facts(user_count)}
        if spread is None:
            return WorkOutcome(self.line("", user_count), facts)
        nodes, away = list(map(str, spread.nodes)), list(map(str, spread.away))
        nodes_text = "" if len(nodes) == 1 and not away else f" (on {several(len(nodes), 'node')})"
        details = [
            f"{node} is away and asks the others when it is back ({reason})" for node, reason in spread.away.items()
        ]
        facts |= {"nodes": nodes, "away": away}
        return WorkOutcome(self.line(nodes_text, user_count), facts, details=tuple(details))

    def line(self, nodes_text: str, user_count: int) -> str:
        """Return the line about finished work; `nodes_text` names the nodes that have it, in brackets."""
        raise TypeError(f"{type(self).__name__} says nothing")

    def facts(self, user_count: int) -> Mapping[str, Any]:
        """Return more facts about finished work, as JSON types."""
        return {}


class _WithRoles(WorkOnUser):
    """Work that gives a user roles."""

    roles: str

    def __post_init__(self) -> None:
        self.granted()

    def granted(self) -> tuple[Any, ...]:
        """Return the grants that the option's text names. Raises OptionError."""
        from headwater.accounts.roles import read_grants

        return read_grants(self.roles)

    def line(self, nodes_text: str, user_count: int) -> str:
        """Return the user's roles."""
        return f"{self.name}: {', '.join(map(str, self.granted()))}{nodes_text}"

    def facts(self, user_count: int) -> Mapping[str, Any]:
        """Return the user's roles."""
        return {"roles": list(map(str, self.granted()))}


@dataclass(frozen=True)
class AddUser(_WithRoles):
    """Add a user.

    The roles say what it may do: read and write documents, stream changes, replicate (be the other node of a
    replication, write documents with revisions of elsewhere), monitor (statistics), or administer: everything. Each is
    for all buckets or, in brackets, for one: read[orders]. Read, write and stream can be for a scope or a collection of
    it as well: read[orders:shop], stream[orders:shop:carts].
    """

    KIND: ClassVar[str] = "user-add"
    HEADING: ClassVar[str] = "Add a user"
    TITLE: ClassVar[str] = "Add user {0.name}"
    DONE: ClassVar[str] = "{} may log in."
    IS_NEW: ClassVar[bool] = True
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater user add ann --roles administer",
        "pass show app | headwater user add app",
    )
    EXITS: ClassVar[Mapping[int, str]] = {1: "there is such a user, or no node took the change"}

    roles: str = option(
        ORDINARY,
        "Of read, write, stream, replicate, monitor, administer; read[BUCKET:SCOPE:COLLECTION] for less.",
        metavar="LIST",
    )
    password: str = option("", PASSWORD, secret=True)

    def edit(self, accounts: dict[str, Account]) -> None:
        """Add the user."""
        from headwater.accounts.users import Account, add_account, check_new, check_password

        check_new(accounts, self.name)
        account = Account.create(check_password(self.password), self.granted())
        add_account(accounts, self.name, account)


@dataclass(frozen=True)
class ChangeRoles(_WithRoles):
    """Give a user other roles, in place of those it has."""

    KIND: ClassVar[str] = "user-roles"
    HEADING: ClassVar[str] = "Give other roles"
    TITLE: ClassVar[str] = "Roles of user {0.name}"
    DONE: ClassVar[str] = "{} has the roles that were given, and no others."
    EXAMPLES: ClassVar[tuple[str, ...]] = ("headwater user roles app 'read,write[orders],stream[orders:shop]'",)
    EXITS: ClassVar[Mapping[int, str]] = {1: NOBODY}

    roles: str = option(..., "All its roles from now on, by commas.", positional=True, metavar="ROLES", allowed="roles")
    force: bool = option(False, FORCE)

    def edit(self, accounts: dict[str, Account]) -> None:
        """Replace the user's roles."""
        from headwater.accounts.users import change_account

        change_account(accounts, self.name, grants=self.granted(), force=self.force)


@dataclass(frozen=True)
class ChangePassword(WorkOnUser):
    """Give a user another password. Who is logged in stays so."""

    KIND: ClassVar[str] = "user-password"
    HEADING: ClassVar[str] = "Give another password"
    TITLE: ClassVar[str] = "Password of user {0.name}"
    DONE: ClassVar[str] = "{} has another password."
    EXAMPLES: ClassVar[tuple[str, ...]] = ("headwater user password ann --password-file ./new.password",)
    EXITS: ClassVar[Mapping[int, str]] = {1: "there is no such user"}

    password: str = option("", PASSWORD, secret=True)

    def edit(self, accounts: dict[str, Account]) -> None:
        """Replace the keys of the user's password."""
        from headwater.accounts.users import Account, change_account, check_password

        keys = Account.create(check_password(self.password), ()).keys
        change_account(accounts, self.name, keys=keys)

    def line(self, nodes_text: str, user_count: int) -> str:
        """Return the line that the user has another password."""
        return f"{self.name} has another password{nodes_text}"


@dataclass(frozen=True)
class RemoveUser(WorkOnUser):
    """Remove a user. Its connections are closed."""

    KIND: ClassVar[str] = "user-remove"
    HEADING: ClassVar[str] = "Remove a user"
    TITLE: ClassVar[str] = "Remove user {0.name}"
    CONFIRMATION: ClassVar[str] = "{0.name}"
    DONE: ClassVar[str] = "{} is removed; its connections are closed."
    EXAMPLES: ClassVar[tuple[str, ...]] = ("headwater user remove app",)
    EXITS: ClassVar[Mapping[int, str]] = {1: NOBODY}

    force: bool = option(False, FORCE)

    def edit(self, accounts: dict[str, Account]) -> None:
        """Remove the user."""
        from headwater.accounts.users import remove_account

        remove_account(accounts, self.name, force=self.force)

    def line(self, nodes_text: str, user_count: int) -> str:
        """Return the line that the user is removed, with a warning if no user is left."""
        return f"{self.name} is removed{nodes_text}" + ("" if user_count else "; nobody is left, and nobody comes in")

    def facts(self, user_count: int) -> Mapping[str, Any]:
        """Return the number of users that are left."""
        return {"left": user_count}


USER_WORKS: dict[str, type[WorkOnUser]] = {
    work.KIND.rpartition("-")[2]: work for work in (AddUser, ChangeRoles, ChangePassword, RemoveUser)
}
"""The kinds of work on users by the names of their commands, which are those in addresses of pages as well."""


def shown_plan(revision: int) -> WorkPlan:
    """Return the plan of work on users whose list was shown at this revision."""
    return WorkPlan(ids={"revision": str(revision)})
