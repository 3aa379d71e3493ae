"""Mutations of the metrics of jobs, and of the alert rules that read them."""

from tests.mutation_tables.mutation import CORE, SHELL, Mutation

ALERTS = "charts/trainingjob/templates/alerts.yaml"
COUNTS = "tests/shell/test_attempt_counts.py"
REPLICAS = "tests/core/report/test_replica_goodput.py"
PROGRESS = "tests/core/observe/test_progress.py"
PRESENT = "tests/shell/test_present_world.py"

METRIC_MUTATIONS = (
    Mutation(
        "export the slices of a world that has ended",
        f"{SHELL}/present_world.py",
        " and not has_ended else 0",
        " else 0",
        (PRESENT,),
    ),
    Mutation(
        "export the last speed of a job that does not train",
        f"{SHELL}/metrics.py",
        "        training = tuple(job for job in with_world if is_training(job))\n",
        "        training = jobs\n",
        (PRESENT,),
    ),
    Mutation(
        "export failing saves of a job that is over",
        f"{SHELL}/metrics.py",
        "        with_world = tuple(job for job, count in slices if count)\n",
        '        with_world = tuple(job for job in jobs if get_value(job, "status", "world"))\n',
        (PRESENT,),
    ),
    Mutation(
        "leave out the seconds since the last written status",
        f"{SHELL}/present_world.py",
        'read.goodput if get_text(status, "completionTime") else count_until_now(read, now)',
        "read.goodput",
        (PRESENT,),
    ),
    Mutation(
        "count the restarts of an earlier leader again",
        f"{SHELL}/assembly.py",
        "                self._restart_counts()  # and has counted the restarts until now\n",
        "",
        ("tests/shell/test_assembly.py::test_a_new_leader_does_not_count_the_restarts_before_it_again",),
    ),
    Mutation(
        "count a planned end of a world as a restart",
        f"{CORE}/report/job_status.py",
        "has_restarted = restarts.total > previous.restarts.total",
        "has_restarted = True",
        (COUNTS,),
    ),
    Mutation(
        "forget restarts whose attempts the status has dropped",
        f"{SHELL}/attempt_counts.py",
        "        self._count(UNLISTED, total - self._total - len(new))\n",
        "",
        (COUNTS,),
    ),
    Mutation(
        "end an alert with the pod of the leader",
        ALERTS,
        "max by (namespace, name) (max_over_time(trainingjob_checkpoint_failing[5m])) == 1",
        "trainingjob_checkpoint_failing == 1",
        ("tests/render/chart/test_alerts.py",),
    ),
    Mutation(
        "a program that never reports a step has no step in the metrics",
        f"{CORE}/observe/progress.py",
        "return ProgressStatus(**_step_fields(0, total)) if seen.world and _reports_steps(plan) else None",
        "return None",
        ("tests/core/observe/test_progress.py",),
    ),
    Mutation(
        "page for a job that trains with an invalid spec as one without progress",
        f"{CORE}/report/job_status.py",
        '            "progress": progress,\n',
        "",
        ("tests/core/report/test_job_status.py",),
    ),
    Mutation(
        "count the steps of one replica as lost while another one trains on",
        f"{CORE}/report/job_status.py",
        "return 0 if has_trained_on else max(_list_new_lost_steps(old, attempts), default=0)",
        "return max(_list_new_lost_steps(old, attempts), default=0)",
        (REPLICAS,),
    ),
    Mutation(
        "count the steps that all replicas train again once for each of them",
        f"{CORE}/report/job_status.py",
        "max(_list_new_lost_steps(old, attempts), default=0)",
        "sum(_list_new_lost_steps(old, attempts))",
        (REPLICAS,),
    ),
    Mutation(
        "show the time of the newest step as the median",
        f"{CORE}/observe/progress.py",
        "return newest.step_seconds if newest.typical_seconds is None else newest.typical_seconds",
        "return newest.step_seconds",
        (PROGRESS,),
    ),
    Mutation(
        "estimate the rest of a batch schedule by the present batch",
        f"{CORE}/observe/progress.py",
        "_estimate_rest(total, newest, plan.spec.training.batch_sizes)",
        "_estimate_rest(total, newest, ())",
        (PROGRESS,),
    ),
    Mutation(
        "show the speed of one replica as that of all devices",
        f"{CORE}/observe/progress.py",
        "(_replica_speed(host_reports) if seen.replicas else {})",
        "{}",
        (PROGRESS,),
    ),
    Mutation(
        "show the last speed of a suspended job as its present one",
        f"{CORE}/report/job_status.py",
        " | ({} if situation.stage in TRAINING_STAGES else NO_SPEED),",
        ",",
        ("tests/core/report/test_job_status.py",),
    ),
    Mutation(
        "print when a failed job would be done",
        "operator/trainingjob_operator/cli/report.py",
        "is_training = status.phase in TRAINING_STAGES",
        "is_training = True",
        ("tests/cli/test_report.py",),
    ),
)
