"""Builds a corpus. Each host builds its shards on all cores. The host that finishes last writes the manifest and the report.

A build can be restarted. A shard is renamed into place when it is complete. The settings are written first, and must be the
same in later runs. The manifest is written last. A lock prevents two processes from building the same part at once. The lock is
released when the process ends."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from bert_jax import files
from bert_jax.data.corpus import sources, store
from bert_jax.data.corpus.corpus_report import (
    ShardSurvey,
    corpus_report,
    format_report,
    repeated_documents,
    require_both_languages,
    sampling,
    survey_shard,
)
from bert_jax.data.corpus.parallel import PairRules, source_languages
from bert_jax.data.corpus.shard import (
    ShardWork,
    TextConfig,
    drop_documents,
    resplit_shard,
    rewrite_shard,
    shard_arrays,
    usable_fraction,
    write_shard,
)
from bert_jax.data.corpus.sources import Item, Source
from bert_jax.data.corpus.store import DOCUMENT_HASHES, SPLITS, TOKEN_COUNTS, shard_name
from bert_jax.data.corpus.workers import Report, run_jobs
from bert_jax.data.tokenizers.tokenizer import CONFIG_FILE, Tokenizer, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.files import Json, JsonObject
from bert_jax.interface.named import Record, file_record
from bert_jax.interface.progress import Progress
from bert_jax.interface.words import byte_unit, counted
from bert_jax.storage.fetching import name_in_bucket

REPORT = "report.json"
RECIPE_FILE = "vocabulary_recipe.json"
"""The file with the flags with which the corpus's vocabulary was trained. A later run with different flags must not reuse this
vocabulary. The file is not hidden, because hidden files are not uploaded to a bucket."""
_TOKENS_WORTH_PROCESSES = 20_000_000  # if there are fewer tokens, starting processes takes longer than the survey

_ACCEPTED_LATER = {"on_bad_bytes": ("error", "replace"), "on_bad_records": ("error", "skip")}
"""Setting -> a change that leaves finished shards as they are. Without an error, a shard has no bad bytes and records."""


@dataclasses.dataclass(frozen=True)
class BuildConfig:
    """All settings of a corpus except the vocabulary."""

    sources: tuple[Source, ...]
    text: TextConfig
    shards: int | None  # None: chosen from the amount of text
    enough_eval: bool  # whether to increase text.eval_fraction if it holds out too few documents to evaluate on
    eval_sources: tuple[Source, ...] = ()  # the sources of the held-out documents; with them, text.eval_fraction is 0


def build_corpus(
    config: BuildConfig,
    tokenizer: Tokenizer,
    directory: pathlib.Path,
    *,
    workers: int,
    host: tuple[int, int],
    command: str,
    say: Callable[[str], object] = lambda _: None,
) -> JsonObject | None:
    """Builds the shards k with k % n == i, where `host` is (i, n). Returns the report, or None if shards of other hosts are
    still missing. `say` is called with notes about the sources (`sources.find_items`)."""
    with store.disk_errors(directory):
        items, held_out, languages = find_text(config, say)
        if languages and tokenizer.separate_vocabularies:
            raise UserError(
                "--vocab is a Marian model with one vocabulary per language, but a corpus has a single vocabulary; use a "
                "Marian model whose languages share a vocabulary, or train a vocabulary on both languages (--train-vocab=bpe)"
            )
        spans = sources.cut(items, sources.default_shards(items, config.shards))
        first_held_out = len(spans)
        if held_out:  # separate shards in which every document is held out
            spans += sources.cut(held_out, sources.default_shards(held_out, None))
        items, shards = [*items, *held_out], len(spans)
        directory.mkdir(parents=True, exist_ok=True)
        settings = _settings(config, items, len(held_out), shards, tokenizer)
        began_earlier = (directory / store.SETTINGS).is_file()
        if not began_earlier and (directory / store.TOKENIZER).exists():  # no build wrote these files
            write_or_check_tokenizer(tokenizer, directory / store.TOKENIZER)
        write_or_check_settings(directory, settings, command, resplit=not config.enough_eval)
        unused = began_earlier and not _holds_anything(directory) and not (directory / RECIPE_FILE).is_file()
        write_or_check_tokenizer(tokenizer, directory / store.TOKENIZER, replace=unused)
        refusal = f"another process is building {directory}; wait until it ends, or give every host its own --shard=i/n"
        with files.locked(directory / f".build-{host[0]}-of-{host[1]}.lock", refusal):
            mine = range(host[0], shards, host[1])
            unfinished = {path.name.split(".")[1] for path in directory.glob(".*.*")}
            for name in unfinished.intersection(shard_name(k, shards) for k in mine):
                files.take_away_unfinished(directory / name)
            done = set(store.finished_shards(directory, shards))
            identity = tokenizer.vocabulary.sha256
            held_out_text = dataclasses.replace(config.text, eval_fraction=1.0)
            texts = {k: config.text if k < first_held_out else held_out_text for k in mine if k not in done}
            work = [ShardWork(directory, k, shards, tuple(spans[k]), text, identity) for k, text in texts.items()]
            if work:
                _write_shards(work, workers, found=len(mine) - len(work))
        missing = shards - len(store.finished_shards(directory, shards))
        if missing:
            print(
                f"done: {shards - missing} of {counted(shards, 'shard')}; other hosts build the remaining {missing}, and the "
                "last host to finish completes the corpus"
            )
            return None
        with files.locked(directory / ".finish.lock"):
            if not _is_finished(directory, config):
                (directory / store.MANIFEST).unlink(missing_ok=True)
                _finish(directory, config, items, shards, tokenizer, workers, languages)
        return files.read_json(directory / REPORT)


def find_text(config: BuildConfig, say: Callable[[str], object]) -> tuple[list[Item], list[Item], tuple[str, str] | None]:
    """Returns the items of the sources, the items of the held-out documents, and the two languages of a corpus of pairs. Raises
    UserError if a source is missing or has no text, if the sources do not fit together, or if an option applies to none of
    them."""
    items = sources.find_items(config.sources, config.text.options, say)
    if not items:
        raise UserError(f"the corpus is empty: there is no text in {', '.join(map(str, config.sources))}")
    languages = source_languages(items)
    held_out = sources.find_items(config.eval_sources, config.text.options, say) if config.eval_sources else []
    if config.eval_sources and not held_out:
        raise UserError(f"there is no text in {', '.join(map(str, config.eval_sources))} (--eval-source)")
    if held_out and (own := source_languages(held_out)) != languages:
        if own is None or languages is None or store.UNNAMED not in (own, languages):
            raise UserError(
                f"--eval-source has {_direction(own)}, but --source has {_direction(languages)}; give an --eval-source of "
                "the same kind"
            )
        languages = own if languages == store.UNNAMED else languages
    _refuse_unused_options(config, [*items, *held_out])
    return items, held_out, languages


def _refuse_unused_options(config: BuildConfig, items: Sequence[Item]) -> None:
    """Raises UserError if an option that selects the text applies to none of the sources."""
    options, every = config.text.options, (*config.sources, *config.eval_sources)
    used = {name for source in every for name in sources.source_kind(source.kind).uses}
    has_fields = any(item.pairs and item.pairs.kind != "lines" for item in items)
    has_pairs, pairs = any(item.pairs for item in items), "texts and their translations"
    ratio, most = config.text.pairs.max_length_ratio, config.text.pairs.max_pair_tokens
    for flag, given, is_used, where in (
        (
            "--text-field",
            options.text_field,
            "text_field" in used,
            "jsonl:, parquet: and arrow: sources (the text of tfds:NAME is chosen by tfds:NAME@FEATURE)",
        ),
        ("--layout", options.layout if options.layout != "auto" else None, "layout" in used, "text: sources"),
        (
            "--pair-fields",
            options.pair_fields,
            has_fields,
            "files that hold both languages (parallel:GLOB.tsv or parallel:GLOB.jsonl) and to translations in tfds:",
        ),
        ("--max-length-ratio", f"{ratio:g}" if ratio != PairRules.max_length_ratio else None, has_pairs, pairs),
        ("--max-pair-tokens", most if most != PairRules.max_pair_tokens else None, has_pairs, pairs),
    ):
        if given and not is_used:
            raise UserError(f"{flag}={given} would have no effect, because it only applies to {where}; leave it out")


def _direction(languages: tuple[str, str] | None) -> str:
    return f"pairs, {' to '.join(languages)}" if languages else "documents"


def write_or_check_tokenizer(tokenizer: Tokenizer, directory: pathlib.Path, *, replace: bool = False) -> None:
    """Writes the tokenizer's files atomically. If `directory` already holds a different vocabulary (from another host or an
    earlier run), replaces this vocabulary if `replace` is True. Otherwise raises UserError, as for a directory of other files."""
    if not (directory / CONFIG_FILE).is_file():
        try:
            with files.writing_directory(directory) as part:
                tokenizer.save(part)
            return
        except FileExistsError as error:
            if not (directory / CONFIG_FILE).is_file():
                raise UserError(
                    f"{directory} holds files, but no {CONFIG_FILE}, so it is not the tokenizer of a corpus; choose another "
                    "--output, or move this directory"
                ) from error
    there, given = (
        found.vocabulary.to_json() | {"max_word_characters": found.max_word_characters}
        for found in (load_tokenizer(directory), tokenizer)
    )
    if there != given and replace:
        with files.writing_directory(directory, replace=True) as part:
            tokenizer.save(part)
    elif there != given:
        raise UserError(
            f"{directory} holds a different vocabulary ({_difference('its', there, given)}); "
            "choose another --output, or remove this directory"
        )


def _settings(config: BuildConfig, items: Sequence[Item], held_out: int, shards: int, tokenizer: Tokenizer) -> JsonObject:
    """Returns all settings that the shards depend on, as JSON. The last `held_out` items are those of the eval sources."""
    text = dataclasses.asdict(config.text)
    text["cleaning"]["keep"] = sorted(config.text.cleaning.keep)
    return {
        "format": store.FORMAT,
        "shards": shards,
        "sources": [str(source) for source in config.sources],
        **_own_files(config),
        **({"eval_sources": [str(source) for source in config.eval_sources]} if config.eval_sources else {}),
        "files": [
            [name_in_bucket(item.path), item.unit, item.length, item.layout, *filter(None, [item.column, _pairs_name(item)])]
            for item in items
        ],
        "eval_files": held_out,
        "sizes": {name_in_bucket(path): pathlib.Path(path).stat().st_size for item in items for path in item.counted_files},
        "vocabulary": tokenizer.vocabulary.to_json(),
        "max_word_characters": tokenizer.max_word_characters,
        **text["options"],
        "text_field": config.text.options.text_field or "text",
        **text["cleaning"],
        **(text["pairs"] if any(item.pairs for item in items) else {}),
        "eval_fraction": config.text.eval_fraction,
    }


def _pairs_name(item: Item) -> str:
    return name_in_bucket(str(item.pairs)) if item.pairs else ""


def _own_records(config: BuildConfig) -> list[Record]:
    """Returns the records of the user's files that define source functions."""
    every = (*config.sources, *config.eval_sources)
    own = [file_record(source.name, source.flag) for source in every if source.kind == "own"]
    return [record for record in own if record]


def _own_files(config: BuildConfig) -> JsonObject:
    """Returns the paths and SHA-256 hashes of the user's files that define source functions."""
    own = _own_records(config)
    return {"own_files": [[record["path"], record["sha256"]] for record in own]} if own else {}


def _own_texts(config: BuildConfig) -> JsonObject:
    """Returns the texts of these files and of the user's files that they import, by path. They are only in the manifest. A build
    compares its settings with the settings of an earlier start, for which the hashes suffice."""
    texts: dict[str, str] = {}
    for record in _own_records(config):
        texts |= {record["path"]: record["source"], **record.get("imports", {})}
    return {"own_texts": texts} if texts else {}


def _is_finished(directory: pathlib.Path, config: BuildConfig) -> bool:
    """Returns whether the corpus has a manifest with the requested held-out fraction. With `enough_eval`, any fraction is
    accepted."""
    if not (directory / store.MANIFEST).is_file():
        return False
    fraction = files.read_object(directory / store.MANIFEST).get("eval_fraction")
    return config.enough_eval or fraction == config.text.eval_fraction


def refuse_other_files(directory: pathlib.Path) -> None:
    """Raises UserError if a directory holds files, but no corpus."""
    if directory.is_dir():
        vocabulary = f"{store.TOKENIZER}/{CONFIG_FILE}"
        inside = [vocabulary] if (directory / vocabulary).is_file() else []
        refuse_other_names(str(directory), [*inside, *(entry.name for entry in directory.iterdir())])


def refuse_other_names(directory: str, names: Collection[str]) -> None:
    """Raises UserError if a directory that contains `names` (relative to the directory) holds files, but no corpus."""
    if store.SETTINGS in names:
        return
    ours = {RECIPE_FILE, *([store.TOKENIZER] if f"{store.TOKENIZER}/{CONFIG_FILE}" in names else [])}
    foreign = {name.partition("/")[0] for name in names} - ours
    if shown := sorted(name for name in foreign if not name.startswith("."))[:3]:
        raise UserError(f"{directory} holds other files ({', '.join(shown)}) and is not a corpus; choose an empty --output")


def write_or_check_settings(directory: pathlib.Path, settings: JsonObject, command: str, *, resplit: bool) -> None:
    """Writes the settings if the corpus has no shards yet. Otherwise raises UserError if the corpus was built
    with other settings. With `resplit`, the held-out fraction of a finished corpus may differ. Bad bytes and records, which were
    an error, may now be accepted. Other patterns are accepted if they match the same files. The first patterns stay recorded, so
    that `began_with` recognises them."""
    path = directory / store.SETTINGS
    if not path.is_file():
        refuse_other_files(directory)
        files.write_json(path, settings | {"command": command}, indent=1)
        return
    before = files.read_json(path)
    if not _holds_anything(directory):  # an earlier command failed before it stored anything
        files.write_json(path, settings | {"command": command}, indent=1)
        return
    every = [key for key in settings if before.get(key) != settings[key]]
    has_same_files = all(before.get(key) == settings[key] for key in ("files", "eval_files"))
    patterns = {key: before[key] for key in ("sources", "eval_sources") if has_same_files and key in before}
    changed = [key for key in every if (before.get(key), settings[key]) != _ACCEPTED_LATER.get(key) and key not in patterns]
    settings = settings | patterns | {"command": command}
    if changed == ["eval_fraction"] and resplit and (directory / store.MANIFEST).is_file():
        difference = _difference(changed[0], before[changed[0]], settings[changed[0]])
        print(f"{difference}: documents move between the splits without being tokenised again.")
        print("A training run that started with the old splits cannot resume with the new splits.")
        files.write_json(path, settings, indent=1)
        return
    if changed:
        new = _added_files(before.get("files", []), settings["files"])
        if new:
            changed = [key for key in changed if key not in ("files", "eval_files", "sizes")]
        differences = [*new, *(_difference(key, before.get(key), settings[key]) for key in changed)]
        leave_out = ", or leave the added files out with another pattern" if new else ""
        raise UserError(
            f"{directory} was started with other settings: {'; '.join(differences)}. Choose another --output, or remove that "
            f"directory{leave_out}"
        )
    if every:
        files.write_json(path, settings, indent=1)


def _added_files(before: Sequence[Sequence[Json]], now: Sequence[Sequence[Json]]) -> list[str]:
    """Returns a clause that names the files that were added to the sources. Returns [] if none were added, or if there are
    other changes too."""
    known = {*map(str, before)}
    added = [str(entry[0]) for entry in now if str(entry) not in known]
    if not added or not known or [*map(str, before)] != [text for text in map(str, now) if text in known]:
        return []
    more = f" and {len(added) - 3} more" if len(added) > 3 else ""
    return [f"{counted(len(added), 'file')} {'was' if len(added) == 1 else 'were'} added ({', '.join(added[:3])}{more})"]


def began_with(directory: pathlib.Path, sources: Json) -> bool:
    """Returns whether a corpus was started with these sources and has shards. When the build continues, it then accepts other
    sources only if they have the same files."""
    path = directory / store.SETTINGS
    return path.is_file() and _holds_anything(directory) and files.read_object(path).get("sources") == sources


def _holds_anything(directory: pathlib.Path) -> bool:
    """Returns whether a corpus directory has a finished or unfinished shard, or whether a process is building the corpus."""
    if any(path.is_dir() for pattern in ("shard-*", ".shard-*") for path in directory.glob(pattern)):
        return True
    return any(files.is_locked(path) for path in directory.glob(".build-*.lock"))


def _difference(key: str, before: Json, now: Json) -> str:
    """Describes the change of a setting. If the setting is an object, such as the vocabulary, lists up to ten properties that
    differ. If it is a long list, such as the files of the sources, describes only the first entry that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = [name for name in before | now if before.get(name) != now.get(name)]
        more = [f"and {len(names) - 10} more"] if len(names) > 10 else []
        return ", ".join([*(_difference(f"{key} {name}", before.get(name), now.get(name)) for name in names[:10]), *more])
    if isinstance(before, list) and isinstance(now, list) and len(str(before)) > 100:
        place = next((k for k, (old, new) in enumerate(zip(before, now, strict=False)) if old != new), min(len(before), len(now)))
        old, new = before[place : place + 1], now[place : place + 1]
        same = len(before) == len(now)
        change = f"the entries of {key} differ" if same else f"{key} had {counted(len(before), 'entry')}, now has {len(now)}"
        return f"{change}; the first difference was {old}, now is {new}"
    return f"{key} was {before}, is {now}"


def _write_shards(work: Sequence[ShardWork], workers: int, found: int) -> None:
    """Runs `work` on `workers` processes. The progress line shows how much of the text is done."""
    weights = [sum(span.weight for span in w.spans) for w in work]
    scale, unit = byte_unit(sum(weights))
    progress = Progress("building the corpus:", total=max(1, round(sum(weights) / scale)), unit=f"{unit} of text")

    def tick(fractions: Sequence[float], tokens: int, finished: int) -> None:
        done = sum(fraction * weight for fraction, weight in zip(fractions, weights, strict=True))
        shards = f"{found + finished}/{counted(found + len(work), 'shard')}"
        progress.update(round(done / scale), f"{tokens / 1e6:.1f} M tokens, {shards}")

    with progress:
        tick([0.0] * len(work), 0, 0)
        run_jobs(_write_one, work, workers, tick)


@functools.cache
def _tokenizer(directory: pathlib.Path, identity: str) -> Tokenizer:
    """Loads the tokenizer in `directory`. A worker keeps the tokenizer and its cache of words for all shards. `identity` is the
    SHA-256 of the vocabulary. It is part of the cache key because the files may change."""
    return load_tokenizer(directory)


def _write_one(work: ShardWork, report: Report) -> None:
    with store.disk_errors(work.store):
        write_shard(work, _tokenizer(work.store / store.TOKENIZER, work.vocabulary_sha256), report)


@dataclasses.dataclass(frozen=True)
class _SurveyWork:
    path: pathlib.Path
    vocabulary_size: int
    unk_id: int
    every: int


def _survey_one(work: _SurveyWork, report: Report) -> ShardSurvey:
    return survey_shard(work.path, vocabulary_size=work.vocabulary_size, unk_id=work.unk_id, every=work.every)


@dataclasses.dataclass(frozen=True)
class _DropWork:
    directory: pathlib.Path
    index: int
    shards: int
    repeated: dict[str, np.ndarray]  # split -> bool [D], True for documents to drop
    vocabulary_size: int


def _drop_one(work: _DropWork, report: Report) -> None:
    with store.disk_errors(work.directory):
        drop_documents(work.directory, work.index, work.shards, work.repeated, work.vocabulary_size)


@dataclasses.dataclass(frozen=True)
class _SplitWork:
    directory: pathlib.Path
    index: int
    shards: int
    fraction: float
    vocabulary_size: int


def _split_one(work: _SplitWork, report: Report) -> None:
    """Changes the held-out fraction of a shard. If the process is killed, the next run finds the new shard or the older one."""
    with store.disk_errors(work.directory):
        path = work.directory / shard_name(work.index, work.shards)
        content = files.read_json(path / "shard.json")
        hashes = store.map_array(path / DOCUMENT_HASHES)
        by_split = {split: shard_arrays(path, split) for split in SPLITS}
        by_split = resplit_shard(by_split, hashes, content["eval_fraction"], work.fraction)
        content["eval_fraction"] = work.fraction
        rewrite_shard(work.directory, (work.index, work.shards), by_split, hashes, content, work.vocabulary_size)


def _finish(
    directory: pathlib.Path,
    config: BuildConfig,
    items: Sequence[Item],
    shards: int,
    tokenizer: Tokenizer,
    workers: int,
    languages: tuple[str, str] | None,
) -> None:
    """Drops duplicate documents, sets the held-out fraction of all shards, and writes the report and the manifest. `languages`
    are the two languages of a corpus of pairs."""
    paths = [directory / shard_name(k, shards) for k in range(shards)]
    contents = [files.read_json(path / "shard.json") for path in paths]
    sentences = sum(content["splits"][split]["sentences"] for content in contents for split in SPLITS)
    if not sentences:
        dropped = _sum(content["dropped"] for content in contents)
        read = _sum(content["read"] for content in contents).get("documents", 0)
        why = ", ".join(f"{count:,} {name}" for name, count in dropped.items() if count)
        for path in paths:  # without shards, the user can build another corpus in this directory
            files.remove_tree(path)
        raise UserError(
            f"the corpus is empty: {counted(read, 'document')} read, none kept ({why or 'the sources hold no text'}); switch "
            "off a cleaning rule with --keep=RULE, or give other sources"
        )
    sides = _sum(content["sides"] for content in contents)
    if languages:
        require_both_languages(languages, sides)
    every = sampling(sentences)
    jobs = [_SurveyWork(path, tokenizer.size, tokenizer.unk_id, every) for path in paths]
    few = sum(content["splits"][split]["tokens"] for content in contents for split in SPLITS) < _TOKENS_WORTH_PROCESSES

    def surveyed(jobs: Sequence[_SurveyWork]) -> list[ShardSurvey]:
        return run_jobs(_survey_one, jobs, 1 if few else workers, lambda fractions, tokens, finished: progress.update(finished))

    with Progress("surveying:", total=shards, unit="shards") as progress:
        surveys = surveyed(jobs)
        if "duplicate-documents" not in config.text.cleaning.keep:
            repeated = repeated_documents(surveys)
            changed = [k for k in range(shards) if any(mask.any() for mask in repeated[k].values())]
            if changed:
                drops = [_DropWork(directory, k, shards, repeated[k], tokenizer.size) for k in changed]
                run_jobs(_drop_one, drops, 1 if few else workers, lambda *_: None)
                for k, new in zip(changed, surveyed([jobs[k] for k in changed]), strict=True):
                    surveys[k] = new
                contents = [files.read_json(path / "shard.json") for path in paths]
        fraction = least = config.text.eval_fraction
        if not config.eval_sources:
            hashes = [np.load(path / DOCUMENT_HASHES) for path in paths]
            least = usable_fraction(np.concatenate(hashes), fraction)
        fraction = least if config.enough_eval else fraction
        moved = [k for k in range(shards) if contents[k]["eval_fraction"] not in (fraction, 1.0)]
        if moved:
            work = [_SplitWork(directory, k, shards, fraction, tokenizer.size) for k in moved]
            run_jobs(_split_one, work, 1 if few else workers, lambda *_: None)
            for k, new in zip(moved, surveyed([jobs[k] for k in moved]), strict=True):
                surveys[k] = new
            contents = [files.read_json(path / "shard.json") for path in paths]
    manifest: JsonObject = {
        "format": store.FORMAT,
        "vocabulary": tokenizer.vocabulary.to_json(),
        "splits": {split: _sum(content["splits"][split] for content in contents) for split in SPLITS},
        "sources": [str(source) for source in config.sources],
        **_own_files(config),
        **_own_texts(config),
        **({"languages": [*languages]} if languages else {}),
        "layouts": _layouts(items),
        "read": _sum(content["read"] for content in contents),
        "dropped": _sum(content["dropped"] for content in contents),
        "kept_characters": sum(content["kept_characters"] for content in contents),
        "eval_fraction": fraction,
        "shards": [
            {"name": path.name, "splits": c["splits"], "files": c["files"]} for path, c in zip(paths, contents, strict=True)
        ],
    }
    fractions = {"asked": config.text.eval_fraction, "used": fraction, "least": least}
    token_counts = sum((np.load(path / TOKEN_COUNTS) for path in paths), np.zeros(tokenizer.size, np.int64))
    letters = _sum(content["letters"] for content in contents)
    twice = sources.given_twice(items)
    numbers = corpus_report(manifest, surveys, tokenizer, every, fractions, token_counts, letters, twice, sides)
    files.write_json(directory / REPORT, numbers, indent=1)
    files.write_text(directory / "report.txt", format_report(numbers))
    files.write_json(directory / store.MANIFEST, manifest, indent=1)


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


def _layouts(items: Sequence[Item]) -> dict[str, list[str]]:
    """Returns, for each layout, the names of the first three files with this layout and the number of further files."""
    names: dict[str, list[str]] = {}
    for item in items:
        if item.layout:
            names.setdefault(item.layout, []).append(pathlib.Path(item.path).name)
    return {layout: [*found[:3], *([f"and {len(found) - 3} more"] if len(found) > 3 else [])] for layout, found in names.items()}
