"""Mutations of the sample order, of the readers of data formats, of data sets of the hub, and of conversations."""

from tests.mutation_tables.mutation import TRAINER, Mutation

SOURCES, TESTS = f"{TRAINER}/data/sources", "tests/trainer/data/sources"
DIVIDED = "tests/trainer/data/test_divided_files.py"
HISTORY = "tests/trainer/data/test_sample_history.py"

DATA_MUTATIONS = (
    Mutation(
        "a rollback to an earlier phase of weights trains excluded samples again",
        f"{TRAINER}/data/sample_history.py",
        "if len(runs) > 1 else ()",
        "if not runs else ()",
        (HISTORY,),
    ),
    Mutation(
        "a rollback to the beginning repeats the samples of a mixture",
        f"{TRAINER}/data/sample_history.py",
        "((0, first_steps[0]),)",
        "((int(self.samples(1)[0]), first_steps[0]),)",
        (HISTORY,),
    ),
    Mutation(
        "a world forgets the phases of excluded samples",
        f"{TRAINER}/snapshots/lineage.py",
        "        phase_runs=history.phase_runs,\n",
        "",
        (HISTORY,),
    ),
    Mutation(
        "a document of ids loses the id that ends it",
        f"{SOURCES}/readers/tokens.py",
        "chunk[first : last + 1]]",
        "chunk[first:last]]",
        (f"{TESTS}/test_token_arrays.py",),
    ),
    Mutation(
        "ids after the last end are dropped",
        f"{SOURCES}/readers/tokens.py",
        "    if parts:\n",
        "    if False:\n",
        (f"{TESTS}/test_token_arrays.py",),
    ),
    Mutation(
        "negative ids wrap around",
        f"{SOURCES}/readers/tokens.py",
        '        if array.dtype.kind == "i" and int(ids.min()) < 0:\n',
        "        if False:\n",
        (f"{TESTS}/test_token_arrays.py",),
    ),
    Mutation(
        "a feature with several texts has the first",
        f"{SOURCES}/readers/array_record.py",
        "        if len(values) != 1:\n",
        "        if not values:\n",
        (f"{TESTS}/test_array_record.py",),
    ),
    Mutation(
        "a record that is an Example is its text",
        f"{SOURCES}/readers/array_record.py",
        "    if features := parse_example(record):\n",
        "    if (features := parse_example(record)) and False:\n",
        (f"{TESTS}/test_array_record.py",),
    ),
    Mutation(
        "all synthetic sources have the same tokens",
        f"{SOURCES}/readers/synthetic.py",
        "zlib.crc32(name.encode())]",
        "0]",
        (f"{TESTS}/test_token_arrays.py",),
    ),
    Mutation(
        "a synthetic source has whole batches of tokens",
        f"{SOURCES}/readers/synthetic.py",
        "[: options.tokens - first]",
        "",
        (f"{TESTS}/test_token_arrays.py",),
    ),
    Mutation(
        "a data set of the hub has files that `exclude` names",
        f"{SOURCES}/hub_dataset.py",
        "if not _is_excluded(name, self.source.exclude)]",
        "]",
        (f"{TESTS}/test_hub_dataset.py",),
    ),
    Mutation(
        "a download is complete before its files are",
        f"{SOURCES}/hub_dataset.py",
        "        download_names(self.own, self.locate_files(commit), hub, commit, names)\n",
        "        self.own.write(self.record, [json.dumps({'commit': commit}).encode()])\n"
        "        download_names(self.own, self.locate_files(commit), hub, commit, names)\n",
        (f"{TESTS}/test_hub_dataset.py",),
    ),
    Mutation(
        "shards of a split are read by the folder rule",
        f"{SOURCES}/hub_splits.py",
        "    if sharded:\n",
        "    if False:\n",
        (f"{TESTS}/test_hub_splits.py",),
    ),
    Mutation(
        "files of a data set that are hidden are read",
        f"{SOURCES}/hub_splits.py",
        'part.startswith((".", "__"))',
        "False",
        (f"{TESTS}/test_hub_splits.py",),
    ),
    Mutation(
        "a template never gets the tools of a conversation",
        f"{TRAINER}/data/chat/chat_template.py",
        '            "tools": tools,\n',
        '            "tools": None,\n',
        ("tests/trainer/data/chat/test_answer_encoder.py",),
    ),
    Mutation(
        "the text of a sample goes on after the turn",
        f"{TRAINER}/monitoring/text_samples.py",
        "        self._ends |= set() if prompt.end is None else {prompt.end}\n",
        "",
        ("tests/trainer/monitoring/test_text_samples.py",),
    ),
    Mutation(
        "a line that begins where a piece begins is in no piece",
        f"{SOURCES}/file_chunks.py",
        "    file.seek(max(span.start - 1, 0))\n",
        "    file.seek(span.start)\n",
        (DIVIDED,),
    ),
    Mutation(
        "a line that ends behind its piece is cut",
        f"{SOURCES}/file_chunks.py",
        "    if chunk and not chunk.endswith(LINE_BREAK):\n",
        "    if False:\n",
        (DIVIDED,),
    ),
    Mutation(
        "pieces take the place of the parts that a trainer without pieces left",
        f"{TRAINER}/data/preparation/parts.py",
        "        return PARTS_WITH_PIECES if self.manifest.has_pieces else PARTS\n",
        "        return PARTS\n",
        (DIVIDED,),
    ),
    Mutation(
        "an error of a piece counts lines from the piece on",
        f"{SOURCES}/readers/__init__.py",
        "        deque(reader.read_documents(replace(file, span=None, bad_records=BadRecords())), maxlen=0)\n",
        "",
        (DIVIDED,),
    ),
    Mutation(
        "a block of text ends inside of a line",
        f"{SOURCES}/text_blocks.py",
        "chunk[:end]]), chunk[end:]",
        'chunk]), b""',
        (f"{TESTS}/test_text_blocks.py",),
    ),
    Mutation(
        "damage after the last frame of zstd is ignored",
        f"{SOURCES}/compression.py",
        "            content = decompressor.unused_data\n",
        '            content = b""\n',
        (f"{TESTS}/test_text_blocks.py",),
    ),
)
