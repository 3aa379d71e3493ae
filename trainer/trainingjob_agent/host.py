"""The rules of an agent: its reaction to an answer, to an event or exit of a child, and to the passing of time.

A message is first applied to the state. Then `_advance` compares the actual with the desired state, independent of the
message. So a lost, late or repeated answer can delay an action, but never add or skip one.

- Only worlds of this job count. An answer with a lower generation than an earlier one is ignored.
- A child belongs to one generation. Another target ends the child at once; nothing waits for a collective to time out.
- The standby gets a world after the previous child is reaped: on most platforms, one process owns the devices.
- A hot standby runs on CPUs, and takes over as soon as the previous child is killed.
- A program of `spec.program` reports no phases. Its exit code means that it is done, or that it has left as requested.
  It has the grace period to leave, because nothing else tells whether it will.
- Only one standby exists at a time. It starts after the child's first step: the other hosts wait for that step, and on
  few cores both would take twice as long.
"""

from dataclasses import replace
from typing import assert_never

from trainingjob_agent import hot_standby
from trainingjob_agent.exit_reason import explain_exit, explain_program_exit
from trainingjob_agent.stacks import truncate_stacks
from trainingjob_agent.state import (
    Action,
    ActiveChild,
    AnswerReceived,
    ChildDiagnosed,
    ChildExited,
    DiagnoseChild,
    DrillReported,
    EventReceived,
    Finish,
    Host,
    InjectFault,
    InspectChild,
    KillChild,
    Message,
    RequestLeave,
    SendLiveSlices,
    SpawnStandby,
    Standby,
    StartChild,
    State,
    Stop,
    Terminated,
    TimerFired,
    Transition,
)
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.protocol import (
    MAX_DAMAGED,
    STARTUP_PHASES,
    Answer,
    Diagnostics,
    Directive,
    Failure,
    FailureReason,
    Phase,
    Termination,
)

MAX_STANDBY_FAILURES = 3
"""Consecutive exits of standbys after which the host reports itself as failed."""
BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
UNREAPED_SECONDS = 30.0
"""Seconds that a killed child may take to end: releasing many GB of memory or a device takes some seconds."""
UNREAPED_FAILURE = Failure(
    reason=FailureReason.KILLED,
    signal="SIGKILL",
    message=f"a killed training process has not ended within {UNREAPED_SECONDS:.0f} s: the kernel holds it, for "
    "storage or a device that does not answer. No other process can start before it ends. Look at the node, and "
    "restart it.",
)
"""The failure that a host with such a child reports."""
FINAL_PHASES = (Phase.LEFT, Phase.DONE)
"""Final phases, which the exit of a child does not change."""
DEVICE_FAILURES = frozenset({FailureReason.CORRUPTION, FailureReason.ACCELERATOR})
"""Failures after which a host must check its devices again."""
OUTCOME_CHARACTERS = 2048
MAX_NAME = 256


def initial_state(last_generation: int, now: float) -> State:
    """Return the initial state; `last_generation` is the last generation of the pod before a restart, 0: none."""
    if not last_generation:
        return State(last_contact=now)
    failure = Failure(
        reason=FailureReason.KILLED,
        message="the container was restarted while its training process was in this world: see the pod's last state.",
    )
    return State(last_contact=now, active=_failed_child(0, last_generation, failure))


def handle_message(host: Host, state: State, message: Message, now: float) -> Transition:
    """Return the state and actions after a message."""
    return _advance(host, _abandon_unreaped(_apply_message(host, state, message, now), now), now)


def next_tick(host: Host, state: State) -> float | None:  # None: no timer is pending
    """Return the time of the next timer."""
    times = []
    if _needs_standby(state):
        times.append(state.spawn_after)
    if hot_standby.is_due(state):
        times.append(state.hot_standby_after)
    if state.stop_deadline is not None and state.live and not state.live.killed:
        times.append(state.stop_deadline)
    if state.live and state.live.leave_deadline is not None and not state.live.killed:
        times.append(state.live.leave_deadline)
    if state.live and state.live.killed:
        times.append(state.live.killed_at + UNREAPED_SECONDS)
    if state.outcome is None and (finish_at := _unattended_finish_at(host, state)) is not None:
        times.append(finish_at)
    return min(times, default=None)


def _apply_message(host: Host, state: State, message: Message, now: float) -> State:
    match message:
        case AnswerReceived(answer):
            return _apply_answer(host, state, answer, now)
        case EventReceived(child, event):
            return _apply_event(state, child, event, now)
        case ChildExited():
            return _record_exit(host, state, message, now)
        case ChildDiagnosed():
            return _record_diagnostics(state, message)
        case DrillReported(drill, error):
            return replace(state, reported_drill=drill, drill_error=error)
        case Terminated():
            return state if state.stop_deadline is not None else replace(state, stop_deadline=now + host.grace)
        case TimerFired():
            return state
        case _:
            assert_never(message)


def _apply_answer(host: Host, state: State, answer: Answer, now: float) -> State:
    world = answer.world
    if world is not None and (world.job_uid != host.job_uid or world.generation < state.newest):
        return replace(state, last_contact=now)
    updated = replace(
        state,
        last_contact=now,
        drill=answer.drill,
        inspection=answer.inspection,
        newest=world.generation if world else state.newest,
        live_slices=state.live_slices if answer.live_slices is None else answer.live_slices,
    )
    match answer.directive:
        case Directive.FINISH:
            return replace(updated, outcome=answer.outcome[:OUTCOME_CHARACTERS])
        case Directive.WAIT:
            return replace(updated, target=None, leaving=False)
        case Directive.TRAIN | Directive.LEAVE:
            if world is None:
                return updated
            if world.find_member(host.pod_uid) is None:
                return replace(updated, target=None, leaving=False)
            belongs = answer.shadow and hot_standby.belongs_to(host, answer.shadow, world)
            return replace(
                updated,
                target=world,
                leaving=answer.directive is Directive.LEAVE,
                may_skip_save=answer.moves,
                diagnose=answer.collect_diagnostics,
                hot_standby_world=answer.shadow if belongs else state.hot_standby_world,
                active=state.active if answer.collect_diagnostics else _clear_diagnostics(state.active),
            )
        case _:
            assert_never(answer.directive)


def _clear_diagnostics(active: ActiveChild | None) -> ActiveChild | None:
    """Return the child without its diagnostics, because it makes progress again."""
    if active is None or (not active.diagnostics_requested and active.evidence is None):
        return active
    return replace(active, diagnostics_requested=False, evidence=None)


def _apply_event(state: State, child: int, event: AgentEvent, now: float) -> State:
    if state.standby and state.standby.child == child:
        if not event.ready:
            return state
        return replace(state, standby=Standby(child, ready=True), standby_failures=0, broken=None)
    if state.hot_standby and state.hot_standby.child == child:
        return hot_standby.apply_event(state, state.hot_standby, event)
    active = state.active
    if not active or active.child != child:
        return state
    # Events of a killed child are still valid, except its phase.
    phase = active.phase if active.killed and event.phase not in FINAL_PHASES else event.phase
    if phase and phase is not active.phase:
        longest = max(state.phase_seconds.get(active.phase, 0.0), now - active.phase_began)
        phases = {**state.phase_seconds, active.phase: longest}
        state = replace(
            state, phase_seconds=phases, devices_verified=state.devices_verified or active.phase is Phase.COMPILING
        )
        active = replace(active, phase=phase, phase_began=now)
    active = replace(
        active,
        entered=active.entered + bool(event.entered),
        newest=event.entered or active.newest,
        progress=event.progress or active.progress,
        restored=active.restored if event.restored is None else event.restored,
        total_steps=active.total_steps if event.total_steps is None else event.total_steps,
        tier=active.tier if event.restored is None else event.tier,
        missing_lineage=active.missing_lineage if event.restored is None else event.missing_lineage,
        initialized_from=event.initialized_from or active.initialized_from,
        data=event.data or active.data,
        preparation=event.preparation or active.preparation,
        committed=active.committed if event.committed is None else event.committed,
        failed_save=event.failed_save or (active.failed_save if event.committed is None else None),
        copied=active.copied if event.copied is None else event.copied,
        failed_copy=event.failed_copy or (active.failed_copy if event.copied is None else None),
        exported=active.exported if event.exported is None else max(event.exported, active.exported or 0),
        failed_export=event.failed_export or (active.failed_export if event.exported is None else None),
        done_at=now if event.phase is Phase.DONE else active.done_at,
    )
    if event.damaged and event.damaged not in active.damaged:
        active = replace(active, damaged=(*active.damaged, event.damaged)[-MAX_DAMAGED:])
    return replace(state, active=active)


def _record_diagnostics(state: State, diagnosed: ChildDiagnosed) -> State:
    """Return the state with the diagnostics of a child, if they are still requested."""
    active = state.active
    if not active or active.child != diagnosed.child or not active.diagnostics_requested:
        return state
    evidence = Diagnostics(
        state=diagnosed.state,
        cores=round(diagnosed.cores, 2),
        entered=active.entered,
        newest=active.newest[:MAX_NAME],
        stack=truncate_stacks(diagnosed.stacks),
    )
    return replace(state, active=replace(active, evidence=evidence))


def _record_exit(host: Host, state: State, ended: ChildExited, now: float) -> State:
    if ended.child == state.unreaped:
        return replace(state, unreaped=None)
    if state.standby and state.standby.child == ended.child:
        return _record_standby_exit(host, state, ended, now)
    if state.hot_standby and state.hot_standby.child == ended.child:
        return hot_standby.record_exit(state, now)
    active = state.active
    if not active or active.child != ended.child:
        return state
    active = replace(active, alive=False)
    if host.runs_program and (phase := explain_program_exit(active, ended)):
        active = replace(active, phase=phase, done_at=now if phase is Phase.DONE else None)
    if active.phase not in (*FINAL_PHASES, Phase.IDLE):
        step = active.progress.step if active.progress else active.restored
        failure = explain_exit(ended, step=step, memory=host.memory, env=host.env, is_program=host.runs_program)
        active = replace(active, phase=Phase.FAILED, failure=failure)
        if failure.reason in DEVICE_FAILURES:
            state = replace(state, devices_verified=False)
    return replace(state, active=active)


def _record_standby_exit(host: Host, state: State, ended: ChildExited, now: float) -> State:
    failures = state.standby_failures + 1
    delay = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1]
    state = replace(state, standby=None, standby_failures=failures, spawn_after=now + delay)
    broken = explain_exit(ended, step=None, memory=host.memory, env=host.env, is_program=host.runs_program)
    if failures < MAX_STANDBY_FAILURES and not broken.fatal:
        return state
    state = replace(state, broken=broken)
    if state.target and state.target.generation > state.started and not state.live:
        # The other hosts of this world are waiting. Report a failure in it, so that the next world is formed.
        state = replace(state, active=_failed_child(ended.child, state.target.generation, broken))
    return state


def _abandon_unreaped(state: State, now: float) -> State:
    """Return the state without a killed child that the kernel has not released in time.

    A world that waits for this host gets a failure report for it, so that the next world is formed without the host.
    """
    live = state.live
    if live and live.killed and now >= live.killed_at + UNREAPED_SECONDS:
        state = replace(state, active=replace(live, alive=False), unreaped=live.child)
    if state.unreaped is not None and state.target and state.target.generation > state.started:
        return replace(state, active=_failed_child(0, state.target.generation, UNREAPED_FAILURE))
    return state


def _failed_child(child: int, generation: int, failure: Failure) -> ActiveChild:
    return ActiveChild(child, generation, alive=False, phase=Phase.FAILED, failure=failure)


def _advance(host: Host, state: State, now: float) -> Transition:
    """Return all actions that lead from the actual to the desired state."""
    actions: list[Action] = []
    while (due := _find_due(host, state, now)) is not None:
        state, action = due
        actions.append(action)
        if isinstance(action, Finish | Stop):
            break
    return Transition(state, tuple(actions))


def _find_due(host: Host, state: State, now: float) -> tuple[State, Action] | None:  # None: no action is due
    """Return the next due action and the state after it; earlier rules take precedence."""
    if state.outcome is not None:
        return state, Finish(_termination(host, state, state.outcome))
    if (finish_at := _unattended_finish_at(host, state)) is not None and now >= finish_at:
        return state, Finish(_termination(host, state, ""))
    if state.live and not state.live.killed and (due := _find_due_for_child(host, state, state.live, now)):
        return due
    if (due := hot_standby.find_due(host, state, now)) is not None:
        return due
    if state.stop_deadline is not None:
        if state.standby:
            return replace(state, standby=None), KillChild(state.standby.child)
        return None if state.live else (state, Stop())
    if (start := _find_start(host, state)) is not None:
        state = replace(
            state, active=ActiveChild(start.child, start.world.generation, phase_began=now), hot_standby_failures=0
        )
        if start.world.shadow:
            return replace(state, hot_standby=None, hot_standby_port_used=True), start
        return replace(state, standby=None), start
    if _needs_standby(state) and now >= state.spawn_after:
        child = state.next_child
        return replace(state, standby=Standby(child), next_child=child + 1), SpawnStandby(child)
    return None


def _find_due_for_child(
    host: Host, state: State, live: ActiveChild, now: float
) -> tuple[State, Action] | None:  # None: let it train
    """Return the due action for the child in a world: kill it, request it to leave, examine it, or start a drill."""
    in_place = state.target is not None and state.target.generation == live.generation
    if in_place and live.leave_deadline is not None and now >= live.leave_deadline:
        killed = replace(live, killed=True, killed_at=now, phase=Phase.LEFT)
        return replace(state, active=killed), KillChild(live.child)
    if not in_place or (state.stop_deadline is not None and now >= state.stop_deadline):
        phase = live.phase if live.phase in FINAL_PHASES else Phase.IDLE
        killed = replace(live, killed=True, killed_at=now, phase=phase)
        return replace(state, active=killed), KillChild(live.child)
    if state.stop_deadline is not None or (state.leaving and not state.may_skip_save):
        if not live.save_requested:
            deadline = now + host.grace if host.runs_program else None
            leave_requested = replace(live, leave_requested=True, save_requested=True, leave_deadline=deadline)
            return replace(state, active=leave_requested), RequestLeave(live.child)
    elif state.leaving and not live.leave_requested:
        return replace(state, active=replace(live, leave_requested=True)), RequestLeave(live.child, moves=True)
    if state.diagnose and not live.diagnostics_requested:
        return replace(state, active=replace(live, diagnostics_requested=True)), DiagnoseChild(live.child)
    if state.drill and state.drill.id != state.started_drill and host.drills_allowed and live.phase is Phase.TRAINING:
        return replace(state, started_drill=state.drill.id), InjectFault(live.child, state.drill)
    if state.inspection and state.inspection.id != state.started_inspection:
        return replace(state, started_inspection=state.inspection.id), InspectChild(live.child, state.inspection)
    if state.live_slices is not None and state.live_slices != live.live_slices:
        return replace(state, active=replace(live, live_slices=state.live_slices)), SendLiveSlices(
            live.child, state.live_slices
        )
    return None


def _find_start(host: Host, state: State) -> StartChild | None:  # None: no world to join, or no child is ready
    """Return the start of the standby, or of a waiting hot standby, in the target world."""
    if not state.target or state.target.generation <= state.started:
        return None
    member = state.target.find_member(host.pod_uid)
    if member and state.hot_standby and hot_standby.can_take_over(state, state.hot_standby):
        return StartChild(state.hot_standby.child, state.target, member.process)
    if state.live or state.unreaped is not None:
        return None
    if not state.standby or not state.standby.ready or not member:
        return None
    return StartChild(state.standby.child, state.target, member.process)


def _needs_standby(state: State) -> bool:
    if state.standby or state.stop_deadline is not None or state.outcome is not None:
        return False
    if not state.active or (state.target and state.target.generation > state.active.generation):
        return True
    phase = state.active.phase
    is_starting = phase in STARTUP_PHASES or (phase is Phase.TRAINING and state.active.progress is None)
    return phase is not Phase.DONE and not is_starting


def _unattended_finish_at(host: Host, state: State) -> float | None:  # None: steps remain to be trained or saved
    """Return when a host that has trained all steps finishes without an answer from the operator."""
    if not state.active or state.active.done_at is None:
        return None
    return max(state.last_contact, state.active.done_at) + host.finish_after


def _termination(host: Host, state: State, outcome: str) -> Termination:
    active = state.active
    return Termination(
        job_uid=host.job_uid,
        generation=state.started,
        phase=active.phase if active else Phase.IDLE,
        committed=active.committed if active else None,
        outcome=outcome,
    )
