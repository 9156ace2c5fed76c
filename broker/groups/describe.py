"""Results of ListGroups and DescribeGroups for classic groups."""

from __future__ import annotations

from odradek.broker.groups.classic_group import ClassicGroup
from odradek.broker.groups.classic_group_states import ClassicGroupState
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.values import value_class


@value_class
class ListedGroup:
    group_id: str
    protocol_type: str
    state: str
    kind: str


@value_class
class DescribedMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@value_class
class DescribedGroup:
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


class ClassicGroupNotFound(KafkaError):
    """There is no group of this name, or it is of another kind."""

    code = ErrorCode.group_id_not_found


def describe(group: ClassicGroup) -> DescribedGroup:
    """Metadata only while the group is stable, as only then there is a protocol that it is for."""
    is_stable = group.state is ClassicGroupState.STABLE
    return DescribedGroup(
        group.group_id,
        group.state_name,
        group.protocol_type or "",
        (group.protocol or "") if is_stable else "",
        tuple(
            DescribedMember(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                each.metadata(group.protocol) if is_stable else b"",
                each.assignment,
            )
            for each in group.roster.members.values()
        ),
    )
