"""Looks inside a model: the attention of its heads, for one text and over many, and its vocabulary.

    python -m bert_jax.analyse attention  --model=MODEL --output=DIR "The cat sat on the mat."
    python -m bert_jax.analyse heads      --model=MODEL --output=DIR --input=texts.txt
    python -m bert_jax.analyse vocabulary --model=MODEL --output=DIR

MODEL is a Hugging Face model directory, a checkpoint of the original, the workdir of a run, or a name on the Hugging Face hub.
Texts come as arguments, from --input=FILE or from standard input: one text per line, or JSON objects (--jsonl, or a name that
ends in .jsonl); files may be gzipped (.gz). A line that cannot be read is reported with its number; the others are read, and the
exit status is 1. Tables are TSV files, every number with its n; beside each picture is the table that it shows.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence

from annotated_types import Interval

from bert_jax.analysis.analyser import Analyser
from bert_jax.analysis.attention import arrays_of, read_head
from bert_jax.analysis.attention_figures import head_figure, overview_figure
from bert_jax.analysis.behaviour import REACH, Heads, HeadStatistics, measure_heads
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.head_figures import FILES as HEAD_FILES
from bert_jax.analysis.head_figures import TITLES, write_heads
from bert_jax.analysis.page import attention_page
from bert_jax.analysis.vocabulary import groups
from bert_jax.analysis.vocabulary_figures import FILES as VOCABULARY_FILES
from bert_jax.analysis.vocabulary_figures import examples, write_vocabulary
from bert_jax.analysis.words import Window, read_windows
from bert_jax.errors import UserError, nearest
from bert_jax.interface.command import choose_verb, run_verb
from bert_jax.interface.flags import FlagParser, nonempty
from bert_jax.interface.progress import Progress
from bert_jax.interface.ranges import MAX_COUNT, InRange
from bert_jax.interface.words import counted
from bert_jax.prediction.streams import Field, Record, Records, read_records
from bert_jax.runtime.compilation_cache import enable_compilation_cache


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb of the command line."""

    summary: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    """Adds the flags of this verb."""
    run: Callable[[argparse.Namespace], int]
    """Returns the exit status."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with the arguments `argv` (default: sys.argv). Returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    summaries = {name: verb.summary for name, verb in VERBS.items()}
    name = choose_verb("python -m bert_jax.analyse", __doc__, summaries, arguments)
    if name is None:
        return 0
    return VERBS[name].run(_parser(name, VERBS[name]).parse_args(arguments[1:]))


def _parser(name: str, verb: Verb) -> FlagParser:
    parser = FlagParser(prog=f"python -m bert_jax.analyse {name}", description=verb.summary)
    parser.add_argument("--model", type=nonempty, required=True, help="model directory, workdir of a run, or name on the hub")
    parser.add_argument("--output", type=nonempty, required=True, metavar="DIR", help="the directory to write to")
    verb.add_flags(parser)
    return parser


def text_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of verbs that read texts."""
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts; without any, standard input is read")
    parser.add_argument("--input", type=nonempty, metavar="FILE", help="one text per line, or .jsonl; also .gz; - is stdin")
    parser.add_argument("--jsonl", action="store_true", help="the input's lines are JSON objects")


# --------------------------------------------------------------------------------------------------------------------- attention
FORMATS = ("html", "png")


def attention_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `attention`."""
    text_flags(parser)
    parser.add_argument("--format", type=_formats, default=("html",), metavar="F,F", help="html: a page; png: pictures (html)")
    head_help = "a picture of it, where the page opens; may be repeated"
    parser.add_argument("--head", type=nonempty, action="append", default=[], metavar="LAYER-HEAD", help=head_help)
    parser.add_argument("--pieces", action="store_true", help="pictures of pieces instead of words")


def attention(flags: argparse.Namespace) -> int:
    """The attention of every layer and head for one text or pair, as a page or as pictures."""
    texts = ["\t".join(flags.texts)] if len(flags.texts) == 2 else flags.texts
    records = read_records(texts, flags.input, (Field("text"), Field("text_b", optional=True)), jsonl=flags.jsonl)
    names = ["attention.npz", "attention.html", "overview.png", *(f"head_{name}.png" for name in flags.head)]
    folder = Folder(flags.output, names, records.file)
    record = the_only(records)
    enable_compilation_cache()
    analyser = load(flags, folder)
    config = analyser.engine.config
    chosen = [read_head(name, config.num_layers, config.num_heads) for name in flags.head]
    found = analyser.attention(record.values["text"], record.values["text_b"])
    folder.arrays("attention.npz", **arrays_of(found))
    if "html" in flags.format:
        folder.write("attention.html", attention_page(found, "{}-{}".format(*chosen[0]) if chosen else None).encode())
    if "png" in flags.format:
        folder.picture("overview.png", overview_figure(found, in_words=not flags.pieces))
        for layer, head in chosen:
            folder.picture(f"head_{layer}-{head}.png", head_figure(found, layer, head, in_words=not flags.pieces))
    print(f"{counted(len(found.word_texts), 'word')}, {counted(len(found.tokens), 'piece')}, with [CLS] and [SEP]")
    print_written(folder)
    return 0


def the_only(records: Records) -> Record:
    """The one record there is. Raises UserError for none, for several, and for one that cannot be read."""
    found = [*itertools.islice(records, 2)]
    if not found:
        raise UserError("there is no text; give one, or two as a pair")
    if len(found) > 1:
        raise UserError("there are several texts, and a page shows one; give one, or two arguments as a pair")
    if found[0].problem:
        raise UserError(f"{found[0].place}{found[0].problem}")
    return found[0]


def _formats(text: str) -> tuple[str, ...]:
    for name in (formats := tuple(text.split(","))):
        if name not in FORMATS:
            raise argparse.ArgumentTypeError(f"={text} is unknown: {nearest(name, FORMATS)}")
    return formats


# ------------------------------------------------------------------------------------------------------------------------- heads
def heads_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `heads`."""
    text_flags(parser)
    reach, words = InRange(int, REACH), InRange(int, Interval(ge=0, le=MAX_COUNT))
    parser.add_argument("--pieces", action="store_true", help="measure between pieces instead of words")
    parser.add_argument("--reach", type=reach, default=Heads.reach, metavar="WORDS", help="of the distance profile (16)")
    parser.add_argument(
        "--divergence-words", type=words, default=Heads.divergence_words, metavar="N", help="words read for them (10000)"
    )


def heads(flags: argparse.Namespace) -> int:
    """Writes the statistics of every head over any number of texts. Returns the exit status."""
    records = read_records(flags.texts, flags.input, (Field("text"),), jsonl=flags.jsonl)
    folder = Folder(flags.output, HEAD_FILES, records.file)
    enable_compilation_cache()
    analyser = load(flags, folder)
    reading = Reading(analyser, records)
    options = Heads(reach=flags.reach, in_words=not flags.pieces, divergence_words=flags.divergence_words)
    found = measure_heads(analyser.engine, reading.windows(), options, reading.show)
    reading.close()
    write_heads(folder, found)
    print(f"{counted(reading.texts, 'text')}, {counted(int(found.n.values[0]), 'word')}" + reading.cut(found.windows))
    print_strongest(found)
    print_written(folder)
    return int(reading.failed > 0)


def print_strongest(found: HeadStatistics) -> None:
    """Prints for each statistic the three heads with the most, beside a head that attends to all words alike."""
    print(f"{'statistic':20} {'heads with the most':45} uniform")
    array = found.statistics
    for s, statistic in enumerate(array["statistic"]):
        flat = array.values[s].ravel()
        order = (-flat).argsort()[:3]
        best = ", ".join(f"{found.divergence['head'][i]} {flat[i]:.3f}" for i in order)
        print(f"{TITLES[str(statistic)]:20} {best:45} {found.uniform.values[s]:.3f}")


# --------------------------------------------------------------------------------------------------------------------- vocabulary
def vocabulary_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `vocabulary`."""
    parser.add_argument("--corpus", type=nonempty, metavar="DIR", help="a corpus of the verb `corpus`, to count pieces in")
    parser.add_argument("--names", type=nonempty, metavar="FILE", help="names, one a line, to look for among the pieces")


def vocabulary(flags: argparse.Namespace) -> int:
    """The pieces of the vocabulary by kind, script and length, and the parameters of the model by part."""
    folder = Folder(flags.output, VOCABULARY_FILES)
    names = read_names(flags.names) if flags.names else None
    found = load(flags, folder).vocabulary(flags.corpus, names)
    write_vocabulary(folder, found)
    for name, value, pieces in groups(found):
        print(f"{name + ' ' + value:32} {len(pieces):9,}  {examples(pieces, 6)}")
    for part, arrays in found.parameters.items():
        size = sum(arrays.values())
        print(f"{'parameters of ' + part:32} {size:9,}  {100 * size / found.num_parameters:.1f} %")
    print_written(folder)
    return 0


def read_names(path: str) -> list[str]:
    """The names in a file, one a line. Raises UserError for a line that is no text."""
    names = []
    for record in read_records((), path, (Field("text"),)):
        if record.problem:
            raise UserError(f"{record.place}{record.problem}")
        names.append(record.values["text"].strip())
    return names


# ------------------------------------------------------------------------------------------------------------------ all verbs
class Reading:
    """Reads records as windows; counts texts, lines that cannot be read and texts that are cut; shows progress."""

    def __init__(self, analyser: Analyser, records: Records):
        self._engine, self._records = analyser.engine, records
        self._progress = Progress("read", None, "lines", delay=2.0)
        self._line = 0
        self.texts = self.failed = self._windows = 0

    def windows(self) -> Iterator[Window]:
        """The windows of all texts; a record without a text is reported."""
        total = self._records.count()
        for record in self._records:
            self._line, self._total = record.number, total
            try:
                if record.problem:
                    raise UserError(record.problem)
                windows = list(read_windows(self._engine, record.values["text"]))
            except UserError as error:
                self.failed += 1
                print(f"error: {record.place}{error}", file=sys.stderr)
                continue
            self.texts += 1
            yield from windows

    def show(self, note: str) -> None:
        """Shows the progress."""
        self._progress.update(self._line, note, self._total)

    def close(self) -> None:
        """Ends the line of progress."""
        self._progress.close()

    def cut(self, windows: int) -> str:
        """The end of a sentence with the number of windows where a text was cut, else ""."""
        if windows == self.texts:
            return ""
        longest = counted(self._engine.config.max_position, "token")
        return f"; texts longer than {longest} were cut: {counted(windows, 'window')}"


def load(flags: argparse.Namespace, folder: Folder) -> Analyser:
    """The model of --model. Raises UserError where the files would go into its directory."""
    analyser = Analyser.load(flags.model)
    if folder.path.resolve() == pathlib.Path(analyser.engine.name).resolve():
        raise UserError(f"--output={flags.output} is the directory of the model itself; choose another --output")
    for note in analyser.engine.model.notes:
        if "activation" in note:  # which the checkpoint does not say, and which changes every number
            print(note, file=sys.stderr)
    return analyser


def print_written(folder: Folder) -> None:
    """Prints the files that were written."""
    print(f"written to {folder.path}: {', '.join(path.name for path in folder.written)}")


VERBS = {
    "attention": Verb("the attention of every head for a text or a pair, as a page or pictures", attention_flags, attention),
    "heads": Verb("what every head attends to: entropy, [CLS], [SEP], neighbours, distances", heads_flags, heads),
    "vocabulary": Verb("the pieces by kind, script and length; the parameters by part", vocabulary_flags, vocabulary),
}


if __name__ == "__main__":
    run_verb(main)
