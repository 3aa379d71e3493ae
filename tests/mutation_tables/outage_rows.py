"""Mutations of what the operator does while the API server fails, rejects a request or answers late."""

from tests.mutation_tables.mutation import CORE, SHELL, Mutation

DELETIONS = "tests/shell/test_reconcile_deletions.py"
INVALID = "tests/shell/test_reconcile_invalid.py"
WORKLOADS = "tests/shell/test_workload_reader.py"

OUTAGE_MUTATIONS = (
    Mutation(
        "a Workload that could not be read counts as a lack of quota",
        f"{CORE}/decide/quota_hold.py",
        "    return is_held and jobset.has_known_workload\n",
        "    return is_held\n",
        ("tests/core/decide/test_quota_hold.py",),
    ),
    Mutation(
        "a failed list of Workloads drops the last known ones",
        f"{SHELL}/workload_reader.py",
        "            self._retry_at[scope] = asyncio.get_running_loop().time() + _retry_delay(error)\n",
        "            self._retry_at[scope] = asyncio.get_running_loop().time() + _retry_delay(error)\n"
        "            self._known.clear()\n",
        (WORKLOADS,),
    ),
    Mutation(
        "an outage stops the lists of Workloads for a minute",
        f"{SHELL}/workload_reader.py",
        "    return max(OUTAGE_RETRY_SECONDS, requested_wait_seconds(error))\n",
        "    return RETRY_SECONDS\n",
        (WORKLOADS,),
    ),
    Mutation(
        "a rejected creation or deletion is repeated in each reconcile",
        f"{SHELL}/rejected_requests.py",
        "        return abs((self._now() - rejection[1]).total_seconds()) < RETRY_SECONDS",
        "        return False",
        (DELETIONS, "tests/shell/test_rejected_requests.py"),
    ),
    Mutation(
        "a rejection of a child that is no longer obsolete stays in the status",
        f"{SHELL}/child_deletion.py",
        '        self._rejections.keep(uid, {get_text(child, "metadata", "uid") for _, child in obsolete})\n',
        "",
        (DELETIONS,),
    ),
    Mutation(
        "a rejected deletion stops the reconcile",
        f"{SHELL}/child_deletion.py",
        "        except ForbiddenError as error:\n",
        "        except ZeroDivisionError as error:\n",
        (DELETIONS,),
    ),
    Mutation(
        "a status with an outdated rejection is written minutes later",
        f"{SHELL}/reconcile.py",
        "        has_outdated_status = new_rejection or rejection != refusal\n",
        "        has_outdated_status = False\n",
        (DELETIONS,),
    ),
    Mutation(
        "a failed request after a decision drops its events",
        f"{SHELL}/reconcile.py",
        "        finally:  # no later reconcile has the events of this decision\n",
        "        except ClusterUnavailableError:\n            raise\n        else:\n",
        (DELETIONS,),
    ),
    Mutation(
        "a list revives an object that was deleted while it was read",
        f"{SHELL}/store.py",
        '        if get_text(manifest, "metadata", "uid") in self._removed_uids.get(key[0], ()):\n',
        "        if False:\n",
        ("tests/shell/test_store.py",),
    ),
    Mutation(
        "deletions are remembered for ever",
        f"{SHELL}/store.py",
        "        self._forget_deletions(namespace)  # the next list begins later, and has none of these objects\n",
        "",
        ("tests/shell/test_store.py",),
    ),
    Mutation(
        "a standby replica keeps deleted jobs",
        f"{SHELL}/scheduler.py",
        "            del self._entries[key]\n\n    def pause",
        "            pass\n\n    def pause",
        ("tests/shell/test_scheduler.py",),
    ),
    Mutation(
        "reports of gone pods stay while the directive does",
        f"{SHELL}/hub.py",
        "            if self._clock() - state.stale_dropped_at >= STALE_CHECK_SECONDS:\n",
        "            if False:\n",
        ("tests/shell/test_hub_forgets.py",),
    ),
    Mutation(
        "acquire the released Lease again",
        f"{SHELL}/assembly.py",
        "            leadership.cancel()  # it would acquire the released Lease again\n"
        "            await asyncio.wait([leadership])\n",
        "",
        ("tests/shell/test_leading.py::test_released_lease_is_not_acquired_again_before_the_end",),
    ),
    Mutation(
        "agents stay with a leader that cannot see the next one",
        f"{SHELL}/assembly.py",
        "                moves_agents=lambda: self.lease.moves_agents,\n",
        "",
        ("tests/shell/test_assembly.py::test_agents_get_the_last_directives_without_an_api_server",),
    ),
    Mutation(
        "agents leave a leader without the API server one by one",
        f"{SHELL}/leader_election.py",
        " and since % MOVE_PERIOD_SECONDS < MOVE_WINDOW_SECONDS\n",
        "\n",
        ("tests/shell/test_leader_election.py",),
    ),
    Mutation(
        "a clock that is set back stops repeated events",
        f"{SHELL}/events.py",
        " and abs((now - last).total_seconds()) < MIN_REPEAT_SECONDS:",
        " and (now - last).total_seconds() < MIN_REPEAT_SECONDS:",
        ("tests/shell/test_events.py",),
    ),
    Mutation(
        "jobs get no queue while another job reads it",
        f"{SHELL}/queue_reader.py",
        "        if entry and (lock.locked() or",
        "        if lock.locked() and entry is None:\n            return QueueConfig()\n"
        "        if entry and (lock.locked() or",
        ("tests/shell/test_queue_reader.py",),
    ),
    Mutation(
        "an outage drops the last known queue",
        f"{SHELL}/queue_reader.py",
        "            return replace(last_known, read_at=now) if last_known else _Entry(now, now, QueueConfig())\n",
        "            return _Entry(now, now, QueueConfig())\n",
        ("tests/shell/test_queue_reader.py",),
    ),
    Mutation(
        "pods are created before the versions of PodGroup are known",
        f"{SHELL}/kind_discovery.py",
        "        if versions is None and not self._discovery.is_forbidden:\n",
        "        if False:\n",
        ("tests/shell/test_kind_discovery.py",),
    ),
    Mutation(
        "a failed discovery drops the last answer",
        f"{SHELL}/kind_discovery.py",
        "                    self.is_forbidden = is_rejection(error)\n",
        "                    self.is_forbidden = is_rejection(error)\n                    self._versions = None\n",
        ("tests/shell/test_kind_discovery.py",),
    ),
    Mutation(
        "hosts of an invalid job start without the program config of their world",
        f"{CORE}/report/job_events.py",
        "        return self.may_start or (",
        "        return True or (",
        (INVALID,),
    ),
    Mutation(
        "the hosts of an invalid job do not save before a suspension",
        f"{CORE}/report/invalid_suspension.py",
        "        if seconds_between(status.leaving_since, now) < SUSPEND_SAVE_TIMEOUT_SECONDS:\n",
        "        if False:\n",
        (INVALID,),
    ),
    Mutation(
        "each restart of the operator gives the hosts of an invalid job more time to save",
        f"{CORE}/report/invalid_suspension.py",
        '"leaving_since": None if end else status.leaving_since or format_time(now),',
        '"leaving_since": None if end else format_time(now),',
        (INVALID,),
    ),
    Mutation(
        "a new operator keeps only one of the replicas of an invalid job",
        f"{CORE}/observe/replica_views.py",
        "    views = [_view_status(status, replica.slice) for replica in status.replicas] or [status]\n",
        "    views = [status]\n",
        (INVALID,),
    ),
    Mutation(
        "replicas of an invalid job that left count as lost when the job resumes",
        f"{CORE}/report/invalid_suspension.py",
        "tuple(_end_replica(replica, now) if end else replica for replica in status.replicas)",
        "status.replicas",
        (INVALID,),
    ),
    Mutation(
        "a finished job that became invalid stays",
        f"{SHELL}/reconcile.py",
        "            return await self._delete_expired(job) if delay <= 0.0 else min(delay, IDLE_REQUEUE_SECONDS)\n",
        "            return IDLE_REQUEUE_SECONDS\n",
        (INVALID,),
    ),
    Mutation(
        "an invalid job may get an unchecked ServiceAccount",
        f"{SHELL}/review_evaluation.py",
        "    if len(accounts) > 1:\n",
        "    if False:\n",
        ("tests/shell/test_webhook_stored.py",),
    ),
    Mutation(
        "an edit may replace a problem of an invalid job by another",
        f"{SHELL}/review_evaluation.py",
        "    return {str(problem) for problem in checked.problems} < former\n",
        "    return bool(former)\n",
        ("tests/shell/test_webhook_stored.py",),
    ),
)
