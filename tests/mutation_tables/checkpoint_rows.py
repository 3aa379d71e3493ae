"""Mutations of checkpoints."""

from tests.mutation_tables.mutation import API, TRAINER, Mutation

CHECKPOINT_MUTATIONS = (
    Mutation(
        "a world takes the marker of another one of its generation",
        f"{TRAINER}/checkpoint/fence.py",
        "            self._store.create_exclusive(self._marker, self._identity)\n",
        "            self._store.write(self._marker, (self._identity,))\n",
        ("tests/trainer/checkpoint/test_reused_generation.py", "tests/trainer/checkpoint/test_fence.py"),
    ),
    Mutation(
        "keep a late step of a fenced-off world in place of another",
        f"{TRAINER}/checkpoint/fence.py",
        "return generation < self.generation and self.resumed_step is not None and step > self.resumed_step\n",
        "return False\n",
        ("tests/trainer/checkpoint/test_fence.py",),
    ),
    Mutation(
        "a step of the world's own generation is no evidence",
        f"{TRAINER}/checkpoint/candidates.py",
        "if newest >= self._world.generation:",
        "if newest > self._world.generation:",
        ("tests/trainer/checkpoint/test_reused_generation.py",),
    ),
    Mutation(
        "restore a checkpoint that lacks a required item",
        f"{TRAINER}/checkpoint/items.py",
        "return equal if saved.layout == layout and required <= equal else None",
        "return equal if saved.layout == layout else None",
        ("tests/trainer/checkpoint/test_items.py",),
    ),
    Mutation(
        "delete frozen tensors although a manifest cannot be read",
        f"{TRAINER}/checkpoint/saved_steps.py",
        "if any(one.damage or one.unreadable for one in steps):",
        "if any(one.unreadable for one in steps):",
        ("tests/trainer/checkpoint/test_frozen_tensors.py",),
    ),
    Mutation(
        "delete the frozen tensors of this world before a step refers to them",
        f"{TRAINER}/checkpoint/frozen_deletion.py",
        "and writer.generation < fence.generation",
        "and writer.generation <= fence.generation",
        ("tests/trainer/checkpoint/test_frozen_tensors.py",),
    ),
    Mutation(
        "keep what a fenced-off world has committed",
        f"{TRAINER}/checkpoint/commit.py",
        "            folder.store.delete(folder.file(MANIFEST_FILE))\n",
        "            pass\n",
        ("tests/trainer/checkpoint/test_fence.py",),
    ),
    Mutation(
        "delete a manifest after its files",
        f"{TRAINER}/checkpoint/step_changes.py",
        "    folder.store.delete(folder.file(MANIFEST_FILE))\n",
        "",
        ("tests/trainer/checkpoint/test_retention.py",),
    ),
    Mutation(
        "keep the last step of a stage by the rule of the next one",
        f"{API}/spec/checkpoint.py",
        "one.until is None or step <= one.until), None)",
        "one.until is None or step < one.until), None)",
        ("tests/api/test_retention_stages.py",),
    ),
    Mutation(
        "delete what a later world writes",
        f"{TRAINER}/checkpoint/saved_steps.py",
        " or writer.generation < fence.generation + own\n",
        " or True\n",
        ("tests/trainer/checkpoint/test_restore_search.py",),
    ),
    Mutation(
        "write every save into one folder",
        f"{TRAINER}/checkpoint/commit.py",
        "        self._num_saves += 1  # the same on all processes: they save together\n",
        "        self._num_saves = 1\n",
        ("tests/trainer/checkpoint/test_commit.py",),
    ),
    Mutation(
        "delete a checkpoint that is being exported",
        f"{TRAINER}/checkpoint/upkeep.py",
        "needed += self.exports.steps_in_use if self.exports else ()",
        "pass",
        ("tests/trainer/checkpoint/test_kept_exports.py",),
    ),
    Mutation(
        "export a checkpoint that has changed",
        f"{TRAINER}/checkpoint/kept_exports.py",
        "            if found[file.name] != file.expected:\n",
        "            if False:\n",
        ("tests/trainer/checkpoint/test_kept_exports.py",),
    ),
)
