//! A call that is being put together: what is asked, what goes with it, where the payload is
//! wanted, by when.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::buffer::Buffer;
use super::reply::{CallError, Outcome, Reply};
use crate::object::SealedObject;

/// A way to make calls: a [`Client`](super::Client) or a [`DirectClient`](super::DirectClient).
pub trait Transport: sealed::Transport {}

impl<T: sealed::Transport> Transport for T {}

pub(crate) mod sealed {
    use super::{Outcome, Outgoing};

    /// Makes calls; not to be implemented elsewhere.
    pub trait Transport {
        /// Makes a call and waits for its outcome.
        #[doc(hidden)]
        #[allow(private_interfaces)]
        fn execute(self, call: Outgoing<'_>) -> Outcome;
    }
}

/// A call that is being put together; [`Call::send`] makes it.
#[derive(Debug)]
#[must_use = "nothing is sent before `send`"]
pub struct Call<'a, T> {
    transport: T,
    outgoing: Outgoing<'a>,
}

/// What is to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(super) method: &'a str,
    pub(super) request: &'a [u8],
    pub(super) bulk: Bulk<'a>,
    /// Lengths of the bulk's parts, if it has several and does not say so itself.
    pub(super) part_lengths: &'a [usize],
    pub(super) wanted: Wanted<'a>,
    pub(super) timeout: Option<Duration>,
}

/// Where the payload of the answer is wanted.
#[derive(Debug)]
pub(super) enum Wanted<'a> {
    Nothing,
    Inline(usize),
    Buffer(Buffer, Range<usize>),
    Fresh(usize),
    Sealed(usize),
    Auto(usize),
    /// In a descriptor of the caller's, at most so many bytes.
    Descriptor(BorrowedFd<'a>, u64),
}

/// The bulk that goes with the request.
#[derive(Debug)]
pub(super) enum Bulk<'a> {
    None,
    Auto(&'a [u8]),
    AutoParts(&'a [&'a [u8]]),
    Inline(&'a [u8]),
    Buffer(Buffer, Range<usize>),
    Sealed(SealedObject, Range<usize>),
}

impl<'a, T: Transport> Call<'a, T> {
    pub(crate) fn new(transport: T, method: &'a str) -> Self {
        let (bulk, wanted) = (Bulk::None, Wanted::Nothing);
        let outgoing =
            Outgoing { method, request: &[], bulk, part_lengths: &[], wanted, timeout: None };
        Self { transport, outgoing }
    }

    /// The request: small, for bulk there is [`Call::payload`].
    pub fn request(mut self, request: &'a [u8]) -> Self {
        self.outgoing.request = request;
        self
    }

    /// Bulk that goes with the request, by the lane that is best for it: inline if it is small,
    /// else through a buffer that the client keeps, from the second such call on. What is over the
    /// server's limit for inline travels in sealed memory where it can't go through a buffer.
    pub fn payload(self, payload: &'a [u8]) -> Self {
        self.bulk(Bulk::Auto(payload))
    }

    /// Like [`Call::payload`], of several parts: each will start at a multiple of 64 bytes of the
    /// payload.
    pub fn payload_parts(self, parts: &'a [&'a [u8]]) -> Self {
        self.bulk(Bulk::AutoParts(parts))
    }

    /// Bulk that goes with the request, inline.
    pub fn payload_inline(self, payload: &'a [u8]) -> Self {
        self.bulk(Bulk::Inline(payload))
    }

    /// Bulk that goes with the request, and lies in a part of `buffer` that starts at a multiple of
    /// 64: the server copies it out. The buffer comes back by [`Reply::into_upload_buffer`].
    pub fn payload_from(self, buffer: Buffer, range: Range<usize>) -> Self {
        self.bulk(Bulk::Buffer(buffer, range))
    }

    /// Bulk that goes with the request: a part of a sealed object that starts at a multiple of 64.
    /// The server reads the object's own pages.
    pub fn payload_sealed(self, object: &SealedObject, range: Range<usize>) -> Self {
        self.bulk(Bulk::Sealed(object.clone(), range))
    }

    /// Says that the payload given consists of parts of these lengths, each but the first starting
    /// at the next multiple of 64 bytes: together they are as long as it is, see
    /// [`parts_bytes`](crate::parts_bytes).
    pub fn part_lengths(mut self, lengths: &'a [usize]) -> Self {
        self.outgoing.part_lengths = lengths;
        self
    }

    /// Wants the payload of the answer in `buffer`, from its start.
    pub fn into(self, buffer: Buffer) -> Self {
        let range = 0..buffer.len();
        self.into_part(buffer, range)
    }

    /// Wants the payload of the answer in a part of `buffer` that starts at a multiple of 64.
    pub fn into_part(self, buffer: Buffer, range: Range<usize>) -> Self {
        self.want(Wanted::Buffer(buffer, range))
    }

    /// Wants the payload of the answer in memory made for this call alone: a memory file of `bytes`
    /// bytes that travels with it. Slower than a buffer that is used again, by the cost of fresh
    /// pages. Huge ones are made for all of it, or, once the method has answered, for as much as
    /// its answers have filled.
    pub fn into_fresh(self, bytes: usize) -> Self {
        self.want(Wanted::Fresh(bytes))
    }

    /// Wants the payload of the answer behind the reply, at most `bytes_max` bytes.
    pub fn inline(self, bytes_max: usize) -> Self {
        self.want(Wanted::Inline(bytes_max))
    }

    /// Wants the payload of the answer, at most `bytes_max` bytes, in memory of the server's that
    /// nobody can change any more: no byte is copied, and where the service answers many with one
    /// object, all share its pages. An answer that is made for this call alone costs fresh pages.
    pub fn sealed(self, bytes_max: usize) -> Self {
        self.want(Wanted::Sealed(bytes_max))
    }

    /// Wants the payload of the answer, at most `bytes_max` bytes, by the lane that is best for it;
    /// [`Reply::lane`] and [`Reply::reason`] say which that was, and why.
    /// [`AutoPolicy`](super::AutoPolicy) has the thresholds.
    ///
    /// What is best depends on how large a method's answers are, which the client learns: its first
    /// call of a method travels inline, later ones through buffers that the client keeps.
    pub fn auto(self, bytes_max: usize) -> Self {
        self.want(Wanted::Auto(bytes_max))
    }

    /// Wants the payload of the answer relayed into a pipe, socket or file: the server writes it
    /// there, from where the descriptor stands. Only servers that allow it do
    /// ([`ServerOptions::descriptors`](crate::ServerOptions::descriptors)).
    ///
    /// The server gets the descriptor's open file and closes it when the call is answered; this
    /// process's own stays open. [`Reply::len`] says how many bytes are in it, and of a call that
    /// fails [`CallError::descriptor_bytes`] does: for that word of the server's the caller waits
    /// up to a second longer than the call's deadline. A descriptor whose other end is read by the
    /// thread that makes the call, after it, must have room for all of the payload.
    pub fn into_descriptor(self, descriptor: &'a (impl AsFd + ?Sized)) -> Self {
        self.into_descriptor_at_most(descriptor, u64::MAX)
    }

    /// Like [`Call::into_descriptor`], at most `bytes_max` bytes.
    pub fn into_descriptor_at_most(
        self,
        descriptor: &'a (impl AsFd + ?Sized),
        bytes_max: u64,
    ) -> Self {
        self.want(Wanted::Descriptor(descriptor.as_fd(), bytes_max))
    }

    /// Gives up after `timeout`; without it, after the client's default.
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.outgoing.timeout = Some(timeout);
        self
    }

    /// Makes the call and waits for its answer.
    ///
    /// # Errors
    /// A [`CallError`], with the buffers if there were any and the server has let go of them:
    /// [`Error::Status`](crate::Error::Status) is the service's own answer,
    /// [`Error::DeadlineExceeded`](crate::Error::DeadlineExceeded) leaves the outcome unknown,
    /// [`Error::Misuse`](crate::Error::Misuse) and
    /// [`Error::LimitReached`](crate::Error::LimitReached) have sent nothing.
    pub fn send(self) -> Result<Reply, CallError> {
        self.transport.execute(self.outgoing)
    }

    pub(crate) fn into_parts(self) -> (T, Outgoing<'a>) {
        (self.transport, self.outgoing)
    }

    fn want(mut self, wanted: Wanted<'a>) -> Self {
        self.outgoing.wanted = wanted;
        self
    }

    fn bulk(mut self, bulk: Bulk<'a>) -> Self {
        self.outgoing.bulk = bulk;
        self
    }
}

impl Outgoing<'_> {
    /// The buffers of a call that is not made.
    pub(super) fn into_error(self, error: crate::error::Error) -> CallError {
        let has_descriptor = matches!(self.wanted, Wanted::Descriptor(..));
        let answer = if let Wanted::Buffer(buffer, _) = self.wanted { Some(buffer) } else { None };
        let upload = if let Bulk::Buffer(buffer, _) = self.bulk { Some(buffer) } else { None };
        CallError::new(error, answer, upload).with_descriptor_bytes(has_descriptor.then_some(0))
    }
}
