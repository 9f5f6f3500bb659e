"""A program with all kinds of values of the package, which the checkers of types read and nothing runs."""

from __future__ import annotations

from typing import Any

import encke


def blocking(client: encke.Encke) -> None:
    created: bool = client.create("s", data={"a": 1}, metadata={"title": "s"})
    appended: encke.Appended = client.append("s", [1], if_match=encke.BEGINNING)
    last: encke.Appended | None = client.append_all("s", iter(["a"]), producer=encke.Producer("p", epoch=1))
    page: encke.Page = client.read("s", last=1)
    names: list[str] = [info.name for info in client.list("a")]
    notices: list[encke.Notice] = []
    with client.follow({"a": encke.NOW}, on_notice=notices.append) as records:
        for record in records:
            offset: str = record.offset
            id: str | None = record.id
            print(offset, id, record.data)
    for notice in notices:
        if isinstance(notice, encke.End):
            print(notice.end_reason)
    posted: encke.Posted = client.post("p", b"a", wait_s=1)
    result: encke.Result | None = posted.result
    wake: encke.Wake | None = client.claim("s", "w")
    print(created, appended.repeated, last, page.text, names, result, wake)


def handler(job: encke.Job) -> dict[str, Any]:
    if job.attempt > 1:
        raise encke.RetryLater(60)
    return {"data": job.data}


async def asynchronous(client: encke.AsyncEncke) -> None:
    async with client.follow(["a", "b/**"], after="id", times=True) as records:
        async for record in records:
            time_ms: int | None = record.time_ms
            print(time_ms)
    names: list[str] = [info.name async for info in client.list()]
    try:
        await client.close_stream("s", "done")
    except encke.StreamClosedError as error:
        print(error.end_reason, names)

    async def resize(job: encke.Job) -> bytes:
        return bytes(job.data)

    await encke.AsyncWorker(client, "p", "w", resize).run(stop_on_signals=True)


def main() -> None:
    async def token() -> str:
        return "token"

    blocking(encke.Encke("http://a", token=lambda: "token", retry=encke.Retry(give_up_s=1)))
    encke.Worker(encke.Encke("http://a"), "p", "w", handler).run()
    encke.AsyncEncke("http://a", token=token)
