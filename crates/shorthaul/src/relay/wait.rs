//! Waiting for one end of a relay: for as long as its deadline, a cancel and a check allow.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{self, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt;
use smallvec::SmallVec;

use super::outcome::Fault;
use crate::sync::{self, AtomicBool};

/// A switch that ends relays, from any thread: also those that wait for a slow sink.
#[derive(Clone)]
pub struct Cancel {
    state: Arc<CancelState>,
}

struct CancelState {
    is_cancelled: AtomicBool,
    /// Readable once it is cancelled, for those that poll.
    bell: OwnedFd,
}

impl Cancel {
    /// A switch that is not thrown yet.
    ///
    /// # Errors
    /// Those of eventfd(2): out of descriptors.
    pub fn new() -> std::io::Result<Self> {
        let bell = event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = CancelState { is_cancelled: AtomicBool::new(false), bell };
        Ok(Self { state: Arc::new(state) })
    }

    /// Ends every relay that has this switch, now and later.
    pub fn cancel(&self) {
        self.state.is_cancelled.store(true, Ordering::Release);
        // It fails only when it is rung 2^64 - 1 times.
        sync::write(&self.state.bell, &1_u64.to_ne_bytes()).ok();
    }

    /// Whether it was thrown.
    pub fn is_cancelled(&self) -> bool {
        self.state.is_cancelled.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("is_cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}

/// What a relay may wait for.
pub(super) struct Patience<'a> {
    /// When it ends in any case.
    pub(super) until: Option<Instant>,
    pub(super) cancel: Option<&'a Cancel>,
    /// Whether its work is wanted no more: asked now and then, and told whether the source is what
    /// it waits for.
    pub(super) is_unwanted: Option<&'a dyn Fn(bool) -> bool>,
}

impl Patience<'_> {
    /// Whether no call may wait for longer than it is allowed to, whatever a descriptor's own mode.
    pub(super) fn is_bounded(&self) -> bool {
        self.until.is_some() || self.cancel.is_some() || self.is_unwanted.is_some()
    }

    /// Whether it is over.
    pub(super) fn check(&self) -> Result<(), Fault> {
        self.check_while(false)
    }

    fn check_while(&self, waits_for_source: bool) -> Result<(), Fault> {
        if self.cancel.is_some_and(Cancel::is_cancelled)
            || self.is_unwanted.is_some_and(|is_unwanted| is_unwanted(waits_for_source))
        {
            return Err(Fault::Cancelled);
        }
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return Err(Fault::DeadlineExceeded);
        }
        Ok(())
    }

    /// For how long a call may wait before [`Patience::check`] is due again.
    fn slice(&self) -> Option<Duration> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let looks = self.is_unwanted.is_some().then_some(LOOK_INTERVAL);
        left.into_iter().chain(looks).min()
    }

    /// Waits until `sink` takes bytes, or has an error to tell.
    pub(super) fn wait_for_sink(&self, sink: BorrowedFd<'_>) -> Result<(), Fault> {
        self.wait(&[PollFd::from_borrowed_fd(sink, PollFlags::OUT)], false)
    }

    /// Waits until `source` has bytes, or ends. If `sink` hangs up meanwhile there is nothing to
    /// wait for any more.
    pub(super) fn wait_for_source(
        &self,
        source: BorrowedFd<'_>,
        sink: Option<BorrowedFd<'_>>,
    ) -> Result<(), Fault> {
        let source = PollFd::from_borrowed_fd(source, PollFlags::IN);
        match sink {
            // Of what isn't asked for, only a hang-up or an error shows.
            Some(sink) => {
                self.wait(&[source, PollFd::from_borrowed_fd(sink, PollFlags::empty())], true)
            }
            None => self.wait(&[source], true),
        }
    }

    /// Waits for the first of `ends`; the others may only end the wait.
    fn wait(&self, ends: &[PollFd<'_>], is_source: bool) -> Result<(), Fault> {
        let bell = self.cancel.map(|cancel| cancel.state.bell.as_fd());
        let bell = bell.map(|bell| PollFd::from_borrowed_fd(bell, PollFlags::IN));
        let mut all: SmallVec<[PollFd<'_>; 3]> = ends.iter().cloned().chain(bell).collect();
        let mut watches = ends.len() > 1;
        let mut has_waited = false;
        // Ends at the deadline; without one, when the end is ready, as a call that waits would.
        loop {
            self.check_while(is_source && has_waited)?;
            let timeout = self.slice().map(|slice| Timespec::try_from(slice).unwrap_or(FOR_EVER));
            match sync::poll(&mut all, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(cause) => {
                    return Err(Fault::Io { context: "can't wait", cause: cause.into() });
                }
            }
            if !all[0].revents().is_empty() {
                return Ok(());
            }
            if watches && !all[1].revents().is_empty() {
                if has_hung_up(&all[1]) {
                    return Err(Fault::SinkClosed);
                }
                // It would end every turn at once: the rest of this wait is for the others.
                all.remove(1);
                watches = false;
            }
            has_waited = true;
        }
    }
}

/// Whether nobody reads a pipe or socket any more. A socket has an error of another kind while what
/// was sent by MSG_ZEROCOPY, or a time stamp, is reported on its error queue.
fn has_hung_up(sink: &PollFd<'_>) -> bool {
    sink.revents().contains(PollFlags::HUP) || sockopt::socket_type(sink.as_fd()).is_err()
}

/// Whether `sink` takes bytes now, or has an error to tell.
pub(super) fn has_room(sink: BorrowedFd<'_>) -> bool {
    let mut ends = [PollFd::from_borrowed_fd(sink, PollFlags::OUT)];
    event::poll(&mut ends, Some(&AT_ONCE)).is_ok_and(|ready| ready > 0)
}

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// How often is asked whether the relay is wanted still, while it waits.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
const FOR_EVER: Timespec = Timespec { tv_sec: i32::MAX as i64, tv_nsec: 0 };

#[cfg(all(test, shorthaul_models))]
mod models;
