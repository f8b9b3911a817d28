"""The web application: LibreTranslate's interface, two pages, a health check and metrics."""

import asyncio
import html
import json
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from string import Template
from typing import Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from fairseq_ext.decoding import stream
from fairseq_ext.decoding.stream import Ranked, SpannedSentences
from fairseq_ext.serving import requests
from fairseq_ext.serving.batching import BUSY, WAIT, Batcher
from fairseq_ext.serving.metrics import PATHS, Metrics, RequestMeter
from fairseq_ext.serving.origins import POLICY
from fairseq_ext.serving.pairs import Pairs, Served
from fairseq_ext.serving.requests import Query, Refusal
from fairseq_ext.serving.settings import Settings
from fairseq_ext.text import html_text
from fairseq_ext.text.sentences import texts_to_translate
from fairseq_ext.version import __version__

_T = TypeVar("_T")


def _read(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _fill(name: str, **parts: str) -> str:
    """Return the page ``name`` of this folder, with the style and other ``parts`` filled in."""
    return Template(_read(name)).substitute(parts, style=_read("style.css"))


TRANSLATE_PAGE = _fill("translate.html")


class Service:
    """The handlers of ``/translate`` and ``/detect``; a :class:`Batcher` translates for them."""

    def __init__(self, pairs: Pairs, settings: Settings, batcher: Batcher) -> None:
        self._pairs, self._settings, self._batcher = pairs, settings, batcher
        self._limits, self._keys = settings.limits, settings.keys
        # One thread converts text to tokens and back, because libraries may not be thread-safe.
        self._text_thread = ThreadPoolExecutor(1, "text")
        self._reserved = 0  # places in the queue that requests have reserved

    async def translate(self, request: Request) -> Response:
        """Answer ``/translate``: translate texts line by line; an empty line stays empty."""
        try:
            query = requests.parse_query(await self._fields(request))
            requests.check_texts(query.texts, self._limits)
            source, model = self._pairs.find(query.source, query.target)
            if query.alternatives >= model.nbest:
                most = model.nbest - 1
                fault = f"`alternatives` must be at most {most}, but is {query.alternatives}."
                raise Refusal(400, fault)
            work = self._translated(query, model)
            answer = await _while_waited_for(request, work, self._limits.timeout)
        except asyncio.CancelledError:  # uvicorn cancels requests after the grace period
            raise Refusal(
                503, "The server stopped before the answer was ready.", requests.CLOSE
            ) from None
        if query.source == requests.AUTO:  # not detected: only one model has this target
            detected = {"confidence": 0.0, "language": source}
            answer["detectedLanguage"] = [detected] * len(query.texts)
        if query.is_single:
            answer = {field: values[0] for field, values in answer.items()}
        return JSONResponse(answer)

    async def detect(self, request: Request) -> Response:
        """Answer ``/detect``: list the served languages, the most probable for a text first."""
        fields = await self._fields(request)
        text = fields.get("q")
        if not isinstance(text, str) or not text.strip():
            raise Refusal(400, "Invalid request: missing q parameter")
        requests.check_texts([text], self._limits)
        return JSONResponse(await self._in_text_thread(1, lambda: self._pairs.detect(text)))

    async def _fields(self, request: Request) -> dict[str, Any]:
        """Read a request's fields.

        Refuse the request if the queue is full, or its body or API key is wrong.
        """
        with self._reservation(1, {**WAIT, **requests.CLOSE}):  # before there is a body in memory
            body = await requests.read_body(request, self._limits)
            fields = await requests.parse_fields(request, body)
        requests.check_key(fields, self._keys)
        return fields

    @contextmanager
    def _reservation(self, count: int, headers: dict[str, str]) -> Iterator[None]:
        """Reserve ``count`` places in the queue during the block, or refuse the request (429).

        ``headers`` are HTTP headers of the refusal.
        """
        if self._batcher.waiting + self._reserved + count > self._limits.max_queue:
            raise Refusal(429, BUSY, headers)
        self._reserved += count
        try:
            yield
        finally:
            self._reserved -= count

    async def _in_text_thread(self, lines: int, work: Callable[[], _T]) -> _T:
        """Call ``work`` in the thread that converts text, and return its result.

        Refuse the request (429) if the queue lacks room for ``lines`` lines.
        """
        with self._reservation(lines, WAIT):
            return await asyncio.get_running_loop().run_in_executor(self._text_thread, work)

    async def _translated(self, query: Query, model: Served) -> dict[str, list[Any]]:
        """Translate the texts of a query; return the answer's fields, a value for each text."""
        in_html, ranks = query.format == requests.HTML, 1 + query.alternatives
        keeper = self._settings.keeper(in_html)
        split = keeper.split_by(model.splitter.split) if keeper else model.splitter.split
        texts = await self._in_text_thread(
            sum(text.count("\n") + 1 for text in query.texts),
            lambda: [_split(text, in_html, split) for text in query.texts],
        )
        sentences, places = [], []
        for number, (lines, _) in enumerate(texts, start=1):
            for line_number, line in enumerate(lines, start=1):
                place = f"{'paragraph' if in_html else 'line'} {line_number}"
                sentences += texts_to_translate(line)
                places += [f"text {number}, {place}" if len(texts) > 1 else place] * len(line)
        if keeper:
            spanned = SpannedSentences(sentences, keeper)
            masked = await self._ranked(spanned.texts, places, model)
            parts, numbers = spanned.restore(masked, ranks)
            places = [places[number] for number in numbers]
            ranked = spanned.complete(await self._ranked(parts, places, model) if parts else [])
        else:
            ranked = await self._ranked(sentences, places, model, ranks)
        translated = iter(ranked)
        joined = [_joined(*text, translated, ranks, model) for text in texts]
        answer: dict[str, list[Any]] = {"translatedText": [best for best, *_ in joined]}
        if query.alternatives:
            answer["alternatives"] = [alternatives for _, *alternatives in joined]
        return answer

    async def _ranked(
        self, sentences: list[str], places: list[str], model: Served, ranks: int | None = None
    ) -> list[Ranked]:
        """Translate sentences; return the best ``ranks`` translations of each (None: all).

        ``places`` has the place of each sentence, such as ``line 3``, for messages. Refuse the
        request (413) if it has too many sentences, or a sentence is too long.
        """
        count, limit = len(sentences), model.translator.limit
        encoded = await self._in_text_thread(count, lambda: model.encode(sentences))
        for sentence, place in zip(encoded, places, strict=True):
            if sentence.length > limit:
                raise Refusal(
                    413,
                    f"{place}: {sentence.length:,} source tokens, but "
                    f"{model.translator.limit_name} at most {limit:,}. Split the line into "
                    "sentences.",
                )
        waiting = [sentence for sentence in encoded if sentence.tokens.strip()]
        requests.require_few("sentences", len(waiting), self._limits.max_sentences)
        results = iter(await self._batcher.translate(model.translator, waiting))
        candidates = [
            next(results)[:ranks] if sentence.tokens.strip() else [] for sentence in encoded
        ]
        return await asyncio.get_running_loop().run_in_executor(
            self._text_thread, lambda: [*map(model.codec.ranked, candidates)]
        )


def _split(
    text: str, in_html: bool, split: Callable[[str], list[str]]
) -> tuple[list[list[str]], list[str]]:
    """Split a text into lines (in HTML: paragraphs), and each line into sentences by ``split``.

    Also return the line ends (in HTML: the markup) between the lines.
    """
    if in_html:
        paragraphs, between = html_text.paragraphs(text)
        return [split(paragraph) for paragraph in paragraphs], between
    lines = [line.removesuffix("\r") for line in text.split("\n")]  # they end at LF or CRLF only
    return [split(line) for line in lines], ["\n"] * (len(lines) - 1)


def _joined(
    lines: list[list[str]],
    between: list[str],
    translated: Iterator[Ranked],
    ranks: int,
    model: Served,
) -> list[str]:
    """Join the translations of a text's sentences; return at most ``ranks`` translated texts.

    The first text has the best translation of each sentence, the second the second best, and so on.
    ``lines`` and ``between`` come from :func:`_split`; ``translated`` yields the translations.
    """
    rows = [stream.join_parts(sentences, translated, model.splitter).texts for sentences in lines]
    return [
        "".join(text + markup for text, markup in zip(texts, [*between, ""], strict=True))
        for texts in stream.by_rank(rows)[:ranks]
    ]


async def _while_waited_for(request: Request, work: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """Return the result of ``work``, or cancel ``work`` and refuse the request.

    The request is refused if the client leaves first (499), or after ``seconds`` (503).
    """
    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({task, disconnect}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if disconnect.done():
            raise Refusal(requests.GONE, "The client has gone.")
        raise Refusal(503, f"There was no translation within {seconds:g} seconds.", WAIT)
    finally:
        task.cancel()
        disconnect.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def build(pairs: Pairs, settings: Settings) -> RequestMeter:
    """Build the web application, which translates with ``pairs``, and counts and times requests."""
    metrics, limits = Metrics(), settings.limits
    sizes = {"batch_size": limits.batch_size, "max_tokens": settings.search.search({}).max_tokens}
    batcher = Batcher(metrics, room=limits.max_queue, **sizes)
    service = Service(pairs, settings, batcher)

    async def translate_page(_: Request) -> Response:
        return HTMLResponse(TRANSLATE_PAGE, headers=POLICY)

    async def docs_page(request: Request) -> Response:
        page = _fill("interface.html", address=html.escape(str(request.base_url)))
        return HTMLResponse(page, headers=POLICY)

    async def openapi(_: Request) -> Response:
        description = json.loads(_read("openapi.json"))
        description["info"]["version"] = __version__
        return JSONResponse(description)

    async def languages(_: Request) -> Response:
        return JSONResponse(pairs.languages)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def figures(_: Request) -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE_LATEST)

    app = Starlette(
        routes=[
            Route("/", translate_page),
            Route("/docs", docs_page),
            Route("/openapi.json", openapi),
            Route("/translate", service.translate, methods=["POST"]),
            Route("/detect", service.detect, methods=["POST"]),
            Route("/languages", languages),
            Route("/health", health),
            Route("/metrics", figures),
        ],
        lifespan=lambda _: batcher.running(),
        exception_handlers=dict.fromkeys((Refusal, HTTPException), _refused),
    )
    return RequestMeter(app, metrics)


async def _refused(_: Request, error: Exception) -> Response:
    """Answer a refused request, or an unknown path, with an error in LibreTranslate's form."""
    if isinstance(error, Refusal):
        return JSONResponse({"error": error.text}, error.status, error.headers)
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail += f"; there are {', '.join(PATHS)}"
    elif method := (error.headers or {}).get("Allow"):
        detail += f"; use {method}"
    return JSONResponse({"error": detail}, error.status_code, error.headers)
