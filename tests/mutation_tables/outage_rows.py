"""Mutations of what the operator does while the API server fails, rejects a request or answers late."""

from tests.mutation_tables.mutation import CORE, SHELL, Mutation

DELETIONS = "tests/shell/test_reconcile_deletions.py"
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
        "        return max(OUTAGE_RETRY_SECONDS, requested_wait_seconds(error))\n",
        "        return RETRY_SECONDS\n",
        (WORKLOADS,),
    ),
    Mutation(
        "a rejected deletion is repeated in each reconcile",
        f"{SHELL}/child_deletion.py",
        "            if last and abs((now - last.at).total_seconds()) < DELETE_BACKOFF_SECONDS:",
        "            if last and False:",
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
)
