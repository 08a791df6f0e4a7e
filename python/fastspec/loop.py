"""Steps one engine for any number of callers: streams and batches of several threads share its passes.

An engine does nothing between calls. Whoever waits for outputs steps, and hands the others theirs. A cancel takes
effect in the step that follows it: whoever leaves the engine while it owes one, and nobody waits, takes that step.
Must not know what the outputs are for.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence

from fastspec._fastspec import Engine, Output, Request
from fastspec.errors import FastSpecError, InvalidArgumentError


class Channel:
    """The requests of one caller.

    Attributes:
        request_ids: in the order of submission.
        unfinished: samples still to end, by request id. Changed under the lock of the loop only.
        closed: nothing more is wanted.
    """

    def __init__(self) -> None:
        """An empty channel; RequestLoop.open() fills it."""
        self.request_ids: list[int] = []
        self.unfinished: dict[int, int] = {}
        self.closed = False
        self._inbox: deque[Output] = deque()

    def put(self, output: Output) -> None:
        """Takes an output of one of the channel's requests."""
        if output.finished:
            left = self.unfinished[output.request] - 1
            if left == 0:
                del self.unfinished[output.request]
            else:
                self.unfinished[output.request] = left
        self._inbox.append(output)

    def take(self) -> list[Output]:
        """What has come since the last call."""
        outputs = list(self._inbox)
        self._inbox.clear()
        return outputs


class RequestLoop:
    """The callers of one engine. Every method is safe from any thread."""

    def __init__(self, engine: Engine) -> None:
        """Takes over stepping of an engine; nobody else may step it."""
        self._engine: Engine | None = engine
        self._process = os.getpid()
        # Guards stepping, and everything below but the queue of closed channels.
        self._lock = threading.Lock()
        self._channels: dict[int, Channel] = {}
        # Closed with requests still running: whoever holds the lock next cancels these.
        self._closed: deque[Channel] = deque()
        # The engine was told to cancel and has not stepped since.
        self._owes_step = False
        # Outputs of the last step that are not handed out yet. They live here and not in a local variable, so that an
        # interrupt between the step and the handing out loses none.
        self._arrived: list[Output] = []

    @property
    def engine(self) -> Engine:
        """The engine; FastSpecError after shut_down(), InvalidArgumentError in a forked process."""
        self._refuse_fork()
        if self._engine is None:
            raise FastSpecError("this LLM is closed")
        return self._engine

    def open(self, requests: Sequence[Request]) -> Channel:
        """Submits all of them or none. Raises InvalidArgumentError for one that can never run."""
        self._refuse_fork()
        channel = Channel()
        try:
            for request in requests:
                with self._lock:
                    request_id = self.engine.submit(request)
                    self._channels[request_id] = channel
                    channel.request_ids.append(request_id)
                    channel.unfinished[request_id] = request.sampling.n
        except BaseException:
            self.close(channel)
            raise
        finally:
            self._cancel_closed()  # of callers who found the lock taken by this submission
        return channel

    def receive(self, channel: Channel) -> list[Output]:
        """The next outputs of a channel, at least one while a sample is unfinished; steps the engine until then."""
        self._refuse_fork()
        try:
            while not channel.closed:
                with self._lock:
                    self._hand_out()
                    outputs = channel.take()
                    if outputs or not channel.unfinished:
                        return outputs
                    if self._step() == 0 and not self._arrived and not self.engine.has_work():
                        raise FastSpecError(f"the engine has lost the requests {sorted(channel.unfinished)}")
            return []
        finally:
            self._cancel_closed()

    def close(self, channel: Channel) -> None:
        """Cancels what is unfinished.

        The cancelled requests' pages are free when this returns, or, if another caller is stepping, with the next step,
        which that caller takes before it leaves if no others have unfinished requests.
        """
        channel.closed = True
        if channel.unfinished:
            self._closed.append(channel)
            self._cancel_closed(step=True)

    def shut_down(self) -> None:
        """Cancels everything and lets go of the engine. Callers that still wait get a FastSpecError."""
        if self._forked():
            return  # the engine is the other process's
        with self._lock:
            engine, self._engine = self._engine, None
            if engine is not None:
                for request_id in self._channels:
                    engine.cancel(request_id)
            self._channels.clear()
            self._owes_step = False

    def _forked(self) -> bool:
        return os.getpid() != self._process

    def _refuse_fork(self) -> None:
        """Goes before the lock, which a thread that does not exist in the child may hold for ever."""
        if self._forked():
            raise InvalidArgumentError("this LLM was loaded before a fork, in another process: load it in this one")

    def _cancel_closed(self, step: bool = False) -> None:
        """Cancels the requests of closed channels, unless another caller holds the lock, who does it on leaving.

        Everybody who held the lock calls this then, also for the cancels that they told the engine themselves. Never
        waits: this may run in a finaliser, inside the very thread that holds the lock.
        """
        while (
            (self._closed or (self._owes_step and not self._channels))
            and not self._forked()
            and self._lock.acquire(blocking=False)
        ):
            try:
                self._hand_out()
                if self._owes_step and (step or not self._channels):  # otherwise the others go on stepping
                    self._step()
                    self._hand_out()
            except FastSpecError:
                self._owes_step = False  # the requests are cancelled all the same, and whoever steps next is told
            finally:
                self._lock.release()

    def _step(self) -> int:
        """One step, whose outputs arrive; the number of sequences in it. Needs the lock."""
        num_sequences = self.engine.step_into(self._arrived)
        self._owes_step = False
        return num_sequences

    def _cancel(self, request_id: int) -> None:
        """Tells the engine, if it is still there. Needs the lock."""
        if self._engine is not None:
            self._engine.cancel(request_id)
            self._owes_step = True

    def _hand_out(self) -> None:
        """Cancels what was closed and moves arrived outputs to their channels. Needs the lock."""
        while self._closed:
            closed = self._closed[0]
            for request_id in closed.unfinished:
                self._channels.pop(request_id, None)
                self._cancel(request_id)
            closed.unfinished.clear()
            self._closed.popleft()
        while self._arrived:
            output = self._arrived[0]
            channel = self._channels.get(output.request)
            if channel is not None:
                channel.put(output)
                if output.request not in channel.unfinished:
                    self._channels.pop(output.request, None)
            elif not output.finished:
                self._cancel(output.request)  # its caller was interrupted between submission and registration
            del self._arrived[0]
