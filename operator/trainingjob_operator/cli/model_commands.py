"""Commands that run the trainer's parts on this machine, without a job: their options and help texts."""

import math
from pathlib import Path
from typing import Annotated

import typer

from trainingjob_operator.cli.app import MAX_STEP, Accelerators, File, PodProfiles, Presets, VolumeFolders, app
from trainingjob_operator.cli.errors import UsageError

Checkpoint = Annotated[
    str,
    typer.Argument(metavar="CHECKPOINT", help="Checkpoint folder of a job, here or in a bucket, or of Hugging Face."),
]
Step = Annotated[
    int | None, typer.Option(min=1, max=MAX_STEP, help="Step to use. Default: the newest that passes verification.")
]
TokenizerFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="tokenizer.json. Default: that of the folder.")
]


@app.command()
def sample(
    checkpoint: Checkpoint,
    prompt: Annotated[str, typer.Option(help="Text that the model continues.")],
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of tokens. Default: 64, or what the model's sequences leave."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="Divisor of the logits before a token is drawn. Default: the most likely token is taken."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2_147_483_647, help="Seed of the random tokens.")] = 0,
    step: Step = None,
    tokenizer: TokenizerFile = None,
) -> None:
    """Continue a text with the weights of a checkpoint or of a folder in the format of Hugging Face.

    It runs on the devices of this machine, and its memory holds the weights. The text goes to standard output, a token
    at a time. With `--seed` as `training.seed`, and the prompt of the job's first sample, the text is that of the job.

    Exit codes: 0 the text is complete, 2 the folder, the step, the tokenizer or the prompt cannot be used.
    """
    from trainingjob_api.weights_exchange import SampleRequest
    from trainingjob_operator.cli.trainer_child import absolute_location
    from trainingjob_operator.cli.weights import sample_folder

    if temperature is not None and not 0 < temperature < math.inf:  # a logit divided by NaN draws any token
        raise UsageError(
            f"--temperature: {temperature:g} must be a finite number greater than 0. Omit it to take the likeliest "
            "token."
        )
    if not prompt:
        raise UsageError("--prompt must have a character or more.")
    request = SampleRequest(
        path=absolute_location(checkpoint),
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        step=step,
        tokenizer=str(tokenizer.absolute()) if tokenizer else None,
    )
    sample_folder(request)


@app.command()
def evaluate(
    checkpoint: Checkpoint,
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Text file, or folder with *.txt files. Repeat for several texts."),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Job whose `evaluation` is run, with its packing and objective."),
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER",
            help="Folder that replaces a volume of the job. Default: where CHECKPOINT shows the volume of its uri.",
        ),
    ] = None,
    step: Step = None,
    tokenizer: TokenizerFile = None,
    sequence_length: Annotated[
        int | None,
        typer.Option(min=2, help="Tokens of a sequence. Default: that of the job, or of the training."),
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="Format of the output: table or json.")] = "table",
    accelerators: Accelerators = None,
    presets: Presets = None,
    pod_profiles: PodProfiles = None,
) -> None:
    """Score the weights of a checkpoint, or of a folder in the format of Hugging Face, on text.

    The scores are loss, perplexity, accuracy and bits per byte. With `--data` each file or folder is one text, and all
    of it is scored. Files of another suffix are read by their suffix: .jsonl, .parquet or .arrow. It runs on the
    devices of this machine, and its memory holds the weights.

    Exit codes: 0 all texts are scored, 1 the job has problems, 2 the folder, the step, the tokenizer or a text cannot
    be used.
    """
    from trainingjob_operator.cli.documents import read_catalog
    from trainingjob_operator.cli.evaluate_folder import EvaluateOptions, evaluate_folder

    if output not in ("table", "json"):
        raise UsageError(f"--output: {output} must be one of: table, json.")
    if bool(data) == bool(job):
        raise UsageError("Name the text to score: either --data PATH, or --job FILE with its `evaluation`.")
    if volume and not job:
        raise UsageError("--volume must be set with --job: it replaces a volume of the job.")
    options = EvaluateOptions(checkpoint, tuple(data or ()), job, tuple(volume or ()), step, tokenizer, sequence_length)
    evaluate_folder(options, read_catalog(accelerators, presets, pod_profiles), as_json=output == "json")


@app.command()
def prepare(
    file: File,
    output: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Folder or URI for the tokens. Default: that of `checkpoint.uri`."),
    ] = None,
    volume: VolumeFolders = None,
    accelerators: Accelerators = None,
    presets: Presets = None,
    pod_profiles: PodProfiles = None,
) -> None:
    """Tokenize the text of a job, so that a job whose `checkpoint.uri` is the folder starts at once.

    The trainer reads the files on all CPUs, as in a pod, and needs no accelerator. The same command resumes after an
    interruption. Tokens are found by the paths in the pods, sizes and modification times of the files, so a copy of the
    files must keep their times.

    Exit codes: 0 all text is tokenized, 1 the job has problems, 2 the text, the tokenizer or the folder cannot be used.
    """
    from trainingjob_operator.cli.documents import read_catalog
    from trainingjob_operator.cli.prepare_folder import PrepareOptions, prepare_file

    prepare_file(file, PrepareOptions(output, volume or ()), read_catalog(accelerators, presets, pod_profiles))


@app.command()
def teach(
    file: File,
    output: Annotated[str, typer.Option(metavar="FOLDER", help="Folder or URI for the probabilities and the tokens.")],
    per_token: Annotated[
        int | None, typer.Option(metavar="K", help="Probabilities of each token. Default: that of `perToken`.")
    ] = None,
    share: Annotated[str, typer.Option(metavar="N/COUNT", help="Which of several processes this is.")] = "1/1",
    volume: VolumeFolders = None,
    accelerators: Accelerators = None,
    presets: Presets = None,
    pod_profiles: PodProfiles = None,
) -> None:
    """Store the probabilities of a job's teacher, so that other jobs distill it without running it.

    The trainer tokenizes the training text and runs the teacher on the devices of this machine. The same command
    resumes after an interruption. With --share, several machines write parts of one folder.

    Exit codes: 0 all probabilities of the share are stored, 1 the job has problems, 2 the text, the teacher or the
    folder cannot be used.
    """
    from trainingjob_api.spec.distillation import DEFAULT_PER_TOKEN
    from trainingjob_operator.cli.documents import read_catalog
    from trainingjob_operator.cli.teach_folder import TeachOptions, teach_file

    options = TeachOptions(output, DEFAULT_PER_TOKEN if per_token is None else per_token, share, volume or ())
    teach_file(file, options, read_catalog(accelerators, presets, pod_profiles))
