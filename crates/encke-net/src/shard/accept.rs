//! New connections.

use std::sync::atomic::Ordering;

use rustix::event::epoll;
use rustix::net::{SendFlags, SocketFlags, accept_with, send};

use super::{LISTENER, Shard};

impl Shard {
    /// Starts or stops looking at the listener.
    pub(super) fn listen(&mut self, on: bool) -> rustix::io::Result<()> {
        if on == self.listening {
            return Ok(());
        }
        if on {
            epoll::add(
                &self.epoll,
                &self.parts.listener,
                epoll::EventData::new_u64(LISTENER),
                epoll::EventFlags::IN,
            )?;
        } else {
            epoll::delete(&self.epoll, &self.parts.listener)?;
        }
        self.listening = on;
        Ok(())
    }

    /// Accepts some of those who wait; the rest come with the next turn.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match accept_with(&self.parts.listener, flags) {
                Ok(socket) => socket,
                Err(rustix::io::Errno::AGAIN) => return,
                Err(
                    error @ (rustix::io::Errno::MFILE
                    | rustix::io::Errno::NFILE
                    | rustix::io::Errno::NOBUFS
                    | rustix::io::Errno::NOMEM),
                ) => {
                    self.out_of_descriptors(error);
                    return;
                }
                // The client gave up before it was accepted.
                Err(_) => continue,
            };
            let taken = self.parts.connections.fetch_add(1, Ordering::Relaxed);
            if taken >= self.parts.settings.connections_max {
                self.parts.connections.fetch_sub(1, Ordering::Relaxed);
                self.refuse_connection("connections_max");
                // A fresh socket's buffer takes these few bytes, or nobody is there to read them.
                let _ = send(&socket, FULL, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                continue;
            }
            let index = self.slots.add(socket, self.clock.now_s());
            self.counts.accepted += 1;
            self.counts.connections += 1;
            let token = self.slots.token(index);
            let Some(fd) = self.slots[index].fd() else {
                continue;
            };
            let added = epoll::add(
                &self.epoll,
                fd,
                epoll::EventData::new_u64(token),
                epoll::EventFlags::IN
                    | epoll::EventFlags::OUT
                    | epoll::EventFlags::RDHUP
                    | epoll::EventFlags::ET,
            );
            if added.is_err() {
                self.close(index, "epoll");
            }
        }
    }

    /// Without descriptors the listener would be ready for ever: it is left alone for a while.
    fn out_of_descriptors(&mut self, error: rustix::io::Errno) {
        self.refuse_connection("descriptors");
        if self.listen(false).is_ok() {
            let now_ms = self.clock.now_ms();
            // Said once, however long it lasts.
            if now_ms > self.listen_again_ms + LISTEN_PAUSE_MS * 5 {
                tracing::warn!(%error, "no connection can be accepted; trying again and again");
            }
            self.listen_again_ms = now_ms + LISTEN_PAUSE_MS;
        }
    }

    fn refuse_connection(&self, reason: &str) {
        self.parts
            .metrics
            .refused
            .with_label_values(&[reason])
            .inc();
    }
}

const ACCEPTS_PER_TURN: usize = 64;

const LISTEN_PAUSE_MS: u64 = 100;

const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    Content-Type: text/plain\r\n\
    Content-Length: 35\r\n\
    Retry-After: 5\r\n\
    Connection: close\r\n\
    \r\n\
    the server has no room for clients\n";
