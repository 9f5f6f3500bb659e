//! The output of a connection: what its socket or the window of an exchange has not taken, and what is sent last.

use super::close::CloseReason;
use super::context::Context;
use super::effect::ConnectionEffect;
use super::exchange::ExchangeEvent;
use super::exchange_id::{ExchangeId, ExchangePlace};
use super::outbound::{FileOutput, Outbound};
use super::state::{Connection, Wire};
use super::timer::{LINGER, Timer};

impl Connection {
    /// The socket has taken the first `sent` bytes of its output; the connection keeps the rest.
    pub(crate) fn keep_output(&mut self, rest: &[u8], cx: &mut Context<'_>) {
        match &mut self.outbound {
            Some(_) if !cx.buffers.have_room() => {
                cx.push(ConnectionEffect::Cut(CloseReason::BuffersMax));
            }
            Some(outbound) => outbound.append(rest),
            None => self.block(Outbound::new(rest.to_vec()), cx),
        }
        cx.push(ConnectionEffect::Weigh(self.id));
    }

    /// Adds parts of files behind what the socket has not taken.
    pub(crate) fn add_files(&mut self, files: Box<FileOutput>, cx: &mut Context<'_>) {
        match &mut self.outbound {
            Some(outbound) => outbound.add_files(files),
            None => self.block(Outbound::of_files(files), cx),
        }
    }

    /// The file that its exchange has written is out.
    pub(crate) fn file_sent(&mut self, cx: &mut Context<'_>) {
        self.on_exchange(self.id, ExchangeEvent::FileSent, cx);
    }

    /// The socket has taken so much of the file.
    pub(crate) fn took_file(&mut self, sent: u64, cx: &mut Context<'_>) {
        if let Some(outbound) = &mut self.outbound {
            outbound.take_file(sent);
            if sent == 0 {
                return;
            }
            let deadline = cx.clock.monotonic().after(cx.settings.stall_timeout);
            self.timer_mut(self.id).deadline = Some(deadline);
        }
    }

    /// Keeps what was not taken of the output of its own exchange.
    pub(crate) fn block(&mut self, outbound: Outbound, cx: &mut Context<'_>) {
        if !outbound.rest().is_empty() && !cx.buffers.have_room() {
            return cx.push(ConnectionEffect::Cut(CloseReason::BuffersMax));
        }
        debug_assert!(
            self.outbound.is_none(),
            "what was kept before would be lost"
        );
        self.outbound = Some(Box::new(outbound));
        if let Wire::Http1(http1) = &mut self.wire {
            http1.exchange.wait_for_client(cx);
        }
        let deadline = cx.clock.monotonic().after(cx.settings.stall_timeout);
        self.timer_mut(self.id).deadline = Some(deadline);
        cx.push(ConnectionEffect::Weigh(self.id));
        cx.push(ConnectionEffect::Remind(self.id));
    }

    /// Keeps what was not taken of the output of one of several exchanges.
    pub(crate) fn block_on(&mut self, id: ExchangeId, outbound: Outbound, cx: &mut Context<'_>) {
        match &mut self.wire {
            Wire::Http2(http2) if id != self.id => http2.block(id, outbound, cx),
            _ => self.block(outbound, cx),
        }
    }

    /// The socket has taken so much more of what was kept. Returns the kept output when all of it is out, unless `is_cut`: a part
    /// of a record of TLS is still to be sent.
    pub(crate) fn took_outbound(
        &mut self,
        sent: usize,
        is_cut: bool,
        cx: &mut Context<'_>,
    ) -> Option<Box<Outbound>> {
        let outbound = self.outbound.as_mut()?;
        outbound.take(sent);
        if outbound.is_out() && !is_cut {
            self.timer_mut(self.id).deadline = None;
            return self.outbound.take();
        }
        // A subscriber that was sent a farewell gets no more time.
        if sent > 0 && !outbound.is_dismissal() {
            let deadline = cx.clock.monotonic().after(cx.settings.stall_timeout);
            self.timer_mut(self.id).deadline = Some(deadline);
        }
        None
    }

    /// Sends bytes of the feed of one of several exchanges; with `ends` they are its last. Returns how many are taken.
    pub(crate) fn send_on(
        &mut self,
        id: ExchangeId,
        bytes: &[u8],
        ends: bool,
        cx: &mut Context<'_>,
    ) -> usize {
        let is_blocked = self.outbound.is_some();
        match &mut self.wire {
            Wire::Http2(http2) => http2.send(id, bytes, ends, is_blocked, cx),
            _ => bytes.len(),
        }
    }

    /// Whether nothing would be taken of what is read for an exchange. Then it is blocked until that changes.
    pub(crate) fn awaits_window(&mut self, id: ExchangeId, cx: &mut Context<'_>) -> bool {
        let is_blocked = self.outbound.is_some();
        match &mut self.wire {
            Wire::Http2(http2) => http2.awaits_window(id, is_blocked, cx),
            _ => false,
        }
    }

    /// How much of `wanted` may be read for an exchange now, in bytes.
    pub(crate) fn grant_read(&mut self, id: ExchangeId, wanted: usize) -> usize {
        match &mut self.wire {
            Wire::Http2(http2) => http2.grant_read(id, wanted),
            _ => wanted,
        }
    }

    /// What was read for the feed of an exchange has arrived.
    pub(crate) fn read_arrived(&mut self, id: ExchangeId) {
        if let Wire::Http2(http2) = &mut self.wire {
            http2.read_arrived(id);
        }
    }

    /// Sends the last bytes to a subscriber: they go behind what was not taken, and end the exchange and its body. That the stream has not
    /// ended they say themselves.
    pub(crate) fn dismiss(
        &mut self,
        id: ExchangeId,
        farewell: &[u8],
        reason: CloseReason,
        cx: &mut Context<'_>,
    ) {
        let place = ExchangePlace {
            exchange: id,
            connection: self.id,
        };
        tracing::debug!(
            client = %cx.client_name(place),
            reason = reason.label(),
            "closing a subscriber before the end of its stream"
        );
        if let Some(channel) = cx.ids.channel_of(id) {
            // The channel goes on without it.
            self.with_channel(channel, cx, |websocket, _, cx| {
                websocket.dismiss(id, farewell, reason, cx);
            });
            return;
        }
        match &mut self.wire {
            Wire::Http2(http2) if id != self.id => http2.dismiss(id, farewell, reason),
            _ => {
                let outbound = self.outbound.get_or_insert_default();
                outbound.dismiss(farewell, reason);
            }
        }
        cx.push(ConnectionEffect::Weigh(id));
        // The client has one stall timeout to read it.
        let deadline = cx.clock.monotonic().after(cx.settings.stall_timeout);
        self.timer_mut(id).deadline = Some(deadline);
        cx.push(ConnectionEffect::Remind(id));
        if let Wire::Http2(http2) = &mut self.wire {
            http2.starve(cx);
        }
    }

    /// Closes it behind what the socket has not taken. `None`: there is nothing of that kind, and it is to be closed now.
    pub(crate) fn close_behind(&mut self, reason: CloseReason) -> Option<()> {
        let outbound = self.outbound.as_mut()?;
        outbound.close.get_or_insert(reason);
        Some(())
    }

    /// Drops what the socket has not taken, and reads no more requests: the client may read what was sent last for a while.
    pub(crate) fn linger(&mut self, cx: &mut Context<'_>) {
        if let Wire::Http2(_) = self.wire {
            cx.counts.http2_connections -= 1;
        }
        self.wire = Wire::Lingering;
        self.outbound = None;
        self.timer = Timer {
            deadline: Some(cx.clock.monotonic().after(LINGER)),
            ..Timer::default()
        };
        cx.push(ConnectionEffect::Weigh(self.id));
        cx.push(ConnectionEffect::Remind(self.id));
    }
}
