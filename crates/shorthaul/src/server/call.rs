//! What a server is for: calls come in, each is answered exactly once.

use std::fmt;
use std::ops::{Range, RangeBounds};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use shorthaul_platform::memory::{LentFile, SharedMapping};
use smallvec::SmallVec;

use super::given::{Descriptors, none_taken};
use super::incoming::{PayloadIn, Source, Upload};
use super::outgoing::{FillPolicy, FillTarget, Out, PayloadOut, Sink, Target, no_memory};
use super::peer::{Charge, Completion, Peer, Spent};
use super::queue::Queued;
use super::region::{Account, Holder, Place, Region, Whose};
use super::shared::Shared;
use crate::connection::server::{Answer, IncomingCall, IncomingFill, IncomingSpan, IncomingUpload};
use crate::error::{Code, Status};
use crate::lane::Lane;
use crate::limits::MESSAGE_BYTES_CAP;
use crate::object::SealedObject;
use crate::parts::Parts;
use crate::payload::MessageBytes;
use crate::undertaker;
use crate::wire::LaneNumber;

/// What a server does with calls. Closures that take `&mut InboundCall` are services.
///
/// A service runs on one of the server's workers, or on a reactor if the server is told to run
/// handlers inline; many calls at once.
pub trait Service: Send + Sync + 'static {
    /// Carries a call out. It is answered by [`InboundCall::reply`], by the error returned here, or
    /// later and from any thread through [`InboundCall::defer`].
    ///
    /// # Errors
    /// Whatever the caller should get as the answer; passed over if the call is answered already.
    fn call(&self, call: &mut InboundCall) -> Result<(), Status>;
}

impl<F> Service for F
where
    F: Fn(&mut InboundCall) -> Result<(), Status> + Send + Sync + 'static,
{
    fn call(&self, call: &mut InboundCall) -> Result<(), Status> {
        self(call)
    }
}

/// A call that came in: what is asked, by whom, and where the payload of the answer goes.
///
/// Dropping it unanswered answers INTERNAL, so that no caller waits for nothing.
pub struct InboundCall {
    state: State,
}

enum State {
    Open(Box<Open>),
    /// Answered on the reactor, which takes the answer from here.
    Answered(Box<Completion>),
    /// Answered or deferred.
    Gone,
}

/// The parts of a call that is not answered yet.
pub(crate) struct Open {
    pub(super) peer: Peer,
    pub(super) shared: Arc<Shared>,
    pub(super) call: u64,
    pub(super) deadline: Option<Instant>,
    text: MessageBytes,
    method_bytes: usize,
    upload: Upload,
    pub(super) target: Target,
    pub(super) out: Option<Out>,
    /// Whether the payload is a relay's, and not to be replaced.
    pub(super) has_relayed: bool,
    /// Whether this runs on the reactor itself, which takes the answer from here, and unmaps after
    /// it has sent it.
    on_reactor: bool,
    /// Whether its answer may be relayed into a descriptor of the client's, and wait for it.
    may_wait: bool,
    /// Its place in its user's account.
    place: Option<Place>,
    /// What its queue has charged for it already.
    charged_bytes: Option<u64>,
    /// Bytes of the request's payload that came inline.
    request_bytes: u64,
}

impl InboundCall {
    pub(crate) fn new(
        incoming: Box<IncomingCall<OwnedFd, Arc<Region>>>,
        mut mapping: impl FnMut(&Region) -> Option<Arc<SharedMapping>>,
        peer: Peer,
        account: &Holder,
        shared: Arc<Shared>,
    ) -> Self {
        let IncomingCall { call, deadline, text, method_bytes, room, fill, upload, parts } =
            *incoming;
        let fill = fill_target(fill, &mut mapping, account, &shared);
        let source = source(upload, &mut mapping, account, &shared);
        let upload = Upload { source, parts };
        let file_bytes_max = peer.sealed_bytes_max();
        let mut target = Target { room, fill, file_bytes_max, account: Holder::clone(account) };
        let inline_bytes_max = peer.inline_bytes_max();
        target.room.inline_bytes = target.room.inline_bytes.min(inline_bytes_max);
        target.room.sealed_bytes = target.room.sealed_bytes.min(file_bytes_max);
        let on_reactor = shared.config.inline_handlers;
        let out = None;
        let charged_bytes = None;
        let request_bytes = upload.inline_bytes();
        let may_wait = matches!(target.fill, FillTarget::Unopened(..));
        if upload.lane() != Lane::None {
            shared.stats.lanes.count_upload(upload.lane(), upload.parts.bytes() as u64);
        }
        Self {
            state: State::Open(Box::new(Open {
                peer,
                shared,
                call,
                deadline,
                text,
                method_bytes,
                upload,
                target,
                out,
                has_relayed: false,
                on_reactor,
                may_wait,
                place: None,
                charged_bytes,
                request_bytes,
            })),
        }
    }

    /// The method's name.
    pub fn method(&self) -> &str {
        self.open()
            .map_or("", |open| std::str::from_utf8(&open.text[..open.method_bytes]).unwrap_or(""))
    }

    /// The request's bytes: the small part of what the client sent.
    pub fn request(&self) -> &[u8] {
        self.open().map_or(&[], |open| &open.text[open.method_bytes..])
    }

    /// The payload of the request, to be read; of no bytes if the client sent none.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the memory that it came in was refused; RESOURCE_EXHAUSTED if it can't
    /// be mapped. Return it by `?`: it is what the caller should get.
    pub fn upload(&mut self) -> Result<PayloadIn<'_>, Status> {
        let open = self.open_mut().ok_or_else(answered_already)?;
        let Open { upload, target, shared, .. } = open;
        upload.open(&target.account, shared)?;
        Ok(PayloadIn { upload, account: &target.account, shared })
    }

    /// Bytes of the request's payload.
    pub fn upload_bytes(&self) -> usize {
        self.open().map_or(0, |open| open.upload.parts.bytes())
    }

    /// Who calls; stays useful after the answer, for notices.
    ///
    /// # Panics
    /// If the call was answered or deferred already.
    pub fn peer(&self) -> &Peer {
        &self.open().expect("the call is not answered yet").peer
    }

    /// When the caller stops waiting, on this machine's CLOCK_MONOTONIC.
    pub fn deadline(&self) -> Option<Instant> {
        self.open().and_then(|open| open.deadline)
    }

    /// Whether nobody waits for the answer any more: cancelled, past its deadline, or disconnected.
    pub fn is_cancelled(&self) -> bool {
        self.open().is_none_or(|open| {
            open.peer.is_cancelled(open.call)
                || open.deadline.is_some_and(|deadline| Instant::now() >= deadline)
        })
    }

    /// How large a payload the caller has room for, in bytes.
    pub fn payload_bytes_max(&self) -> u64 {
        self.open().map_or(0, |open| open.target.bytes_max())
    }

    /// Asks for a payload of up to `bytes` bytes, to be written in order; a second one replaces the
    /// first. The server's own [`FillPolicy`] says how a client's buffer is filled.
    ///
    /// # Errors
    /// OUT_OF_RANGE naming the size needed if the caller has room for less; INVALID_ARGUMENT or
    /// PERMISSION_DENIED if its memory or descriptor was refused; RESOURCE_EXHAUSTED if memory
    /// can't be mapped or had; FAILED_PRECONDITION after a [relay](InboundCall::relay). Return it
    /// by `?`: it is what the caller should get.
    pub fn payload(&mut self, bytes: usize) -> Result<PayloadOut<'_>, Status> {
        let policy = self.open().map(|open| open.shared.config.fill);
        self.payload_with(bytes, policy.unwrap_or_default())
    }

    /// Like [`InboundCall::payload`], with a policy for this call alone.
    ///
    /// # Errors
    /// As [`InboundCall::payload`].
    pub fn payload_with(
        &mut self,
        bytes: usize,
        policy: FillPolicy,
    ) -> Result<PayloadOut<'_>, Status> {
        let open = self.open_mut().ok_or_else(answered_already)?;
        open.begin_payload()?;
        open.payload_out_with(bytes, policy)
    }

    /// Answers with a range of a file, pipe or socket as payload: read straight into the caller's
    /// memory, or relayed into its descriptor, at once and without its bytes being looked at.
    /// Returns how many bytes that is.
    ///
    /// ```
    /// # use std::fs::File;
    /// # use shorthaul::{InboundCall, Status};
    /// fn serve(call: &mut InboundCall, file: &File) -> Result<(), Status> {
    ///     call.relay(file, 4096..8192)?;
    ///     call.reply(&[])
    /// }
    /// ```
    ///
    /// A range without an end goes to the end that the source has now; of what has no size (pipes,
    /// sockets, files of /proc) to where reading ends, as far as there is room (of memory, up to a
    /// gibibyte). It takes as long as source and sink do, but not beyond the call's deadline
    /// (without one, for a minute) nor while a descriptor takes nothing for 30 seconds, and ends
    /// soon after the call is taken back or its connection is gone. A payload that was relayed is
    /// not replaced by another one.
    ///
    /// A pipe of the caller's gets the file's own pages, not copies: what is overwritten in place
    /// before they are read from it shows there, also after the reply.
    ///
    /// # Errors
    /// As [`InboundCall::payload`]; OUT_OF_RANGE if a source of unknown size has more than there is
    /// room for; DATA_LOSS if it ends before the range does; DEADLINE_EXCEEDED, CANCELLED, ABORTED
    /// if nobody reads the descriptor any more; INVALID_ARGUMENT for a range or source that can't
    /// be. What of it is in the caller's descriptor all the same, the caller is told with the
    /// answer.
    pub fn relay(
        &mut self,
        source: impl AsFd,
        range: impl RangeBounds<u64>,
    ) -> Result<u64, Status> {
        let open = self.open_mut().ok_or_else(answered_already)?;
        open.relay(source.as_fd(), &range)
    }

    /// Answers with a part of a sealed object as payload: a caller who takes sealed memory gets the
    /// object's own pages, however many callers that are; to others the bytes are copied.
    ///
    /// # Errors
    /// As [`InboundCall::payload`].
    ///
    /// # Panics
    /// If `range` is not inside the object.
    pub fn payload_object(
        &mut self,
        object: &SealedObject,
        range: Range<usize>,
    ) -> Result<(), Status> {
        assert!(object.contains(&range), "bytes {range:?} of an object of {}", object.len());
        let open = self.open_mut().ok_or_else(answered_already)?;
        open.begin_payload()?;
        if let Some(out) = Out::of_object(&open.target, object, &range) {
            open.out = Some(out);
            return Ok(());
        }
        self.payload(range.len())?.copy_from(&object[range])
    }

    /// Answers: success, with these response bytes and the payload as far as it was written. What
    /// was written for a descriptor of the caller's is relayed into it now, within the call's
    /// deadline; if that fails, so does the call.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it is answered already; OUT_OF_RANGE if the response is larger than a
    /// message may be, and the call is still open.
    pub fn reply(&mut self, response: &[u8]) -> Result<(), Status> {
        let bytes_max = self.open().ok_or_else(answered_already)?.peer.message_bytes_max();
        if response.len() > bytes_max.min(MESSAGE_BYTES_CAP as usize) {
            return Err(Status::new(
                Code::OutOfRange,
                format!("a response of {} bytes is over the limit of {bytes_max}", response.len()),
            ));
        }
        let mut open = self.take_open().ok_or_else(answered_already)?;
        let (answer, mapping) = match open.finish_payload() {
            Ok((mut answer, mapping)) => {
                answer.response = SmallVec::from_slice(response);
                (answer, mapping)
            }
            Err(status) => (open.failure(carried_out(status)), None),
        };
        self.state = open.complete(answer, mapping);
        Ok(())
    }

    /// Answers: failure.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it is answered already.
    pub fn fail(&mut self, status: Status) -> Result<(), Status> {
        let mut open = self.take_open().ok_or_else(answered_already)?;
        let answer = open.failure(status);
        let mapping = open.out.take().and_then(|out| used_mapping(out.sink));
        self.state = open.complete(answer, mapping);
        Ok(())
    }

    /// Takes the call out of the handler's hands, to be answered later and from any thread.
    #[must_use = "dropping it answers INTERNAL"]
    pub fn defer(&mut self) -> Self {
        let Some(mut open) = self.take_open() else { return Self { state: State::Gone } };
        open.on_reactor = false;
        Self { state: State::Open(open) }
    }

    /// Counts the call as its user's, until it is answered.
    pub(crate) fn take_place(&mut self, account: &Holder) -> Result<(), Status> {
        if let Some(open) = self.open_mut() {
            open.place = Some(Account::begin_call(account)?);
        }
        Ok(())
    }

    /// Whether it may wait for its client: it hands over a descriptor to be relayed into.
    pub(crate) fn may_wait(&self) -> bool {
        self.open().is_some_and(|open| open.may_wait)
    }

    /// Notes what its queue has charged for the call.
    pub(crate) fn charge(&mut self, bytes: u64) {
        if let Some(open) = self.open_mut() {
            open.charged_bytes = Some(bytes);
        }
    }

    /// Answers for a handler that neither answered nor deferred the call.
    pub(crate) fn leave_unanswered(&mut self) {
        if self.open().is_some() {
            let status = Status::new(Code::Internal, "the handler dropped the call unanswered");
            // Refused only if it is answered already, and it is not.
            self.fail(status).ok();
        }
    }

    /// Answers, on the reactor, a call that no handler has seen.
    pub(crate) fn take_back(mut self, status: Status) -> Option<Box<Completion>> {
        self.open_mut()?.on_reactor = true;
        // Refused only if it is answered already, and it is not.
        self.fail(status).ok();
        self.take_answer()
    }

    /// The answer that was made on the reactor, if it is made by now.
    pub(crate) fn take_answer(&mut self) -> Option<Box<Completion>> {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Answered(completion) => Some(completion),
            state => {
                self.state = state;
                None
            }
        }
    }

    fn open(&self) -> Option<&Open> {
        if let State::Open(open) = &self.state { Some(open) } else { None }
    }

    fn open_mut(&mut self) -> Option<&mut Open> {
        if let State::Open(open) = &mut self.state { Some(open) } else { None }
    }

    fn take_open(&mut self) -> Option<Box<Open>> {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Open(open) => Some(open),
            state => {
                self.state = state;
                None
            }
        }
    }
}

impl Queued for InboundCall {
    fn id(&self) -> u64 {
        self.open().map_or(0, |open| open.call)
    }

    fn bytes_max(&self) -> u64 {
        self.payload_bytes_max()
    }

    fn inline_bytes(&self) -> u64 {
        self.open().map_or(0, Open::inline_bytes)
    }
}

impl Open {
    /// Bytes of memory that an inline answer may take.
    fn inline_bytes(&self) -> u64 {
        self.target.room.inline_bytes_max()
    }

    /// Makes ready for a payload: what an earlier one held is given back, and the client's
    /// descriptor is looked at.
    pub(super) fn begin_payload(&mut self) -> Result<(), Status> {
        if self.has_relayed {
            let message = "the payload was relayed already: a call has one";
            return Err(Status::new(Code::FailedPrecondition, message));
        }
        self.out = None;
        self.target.fill.open(&self.shared);
        Ok(())
    }

    pub(super) fn payload_out(&mut self, bytes: usize) -> Result<PayloadOut<'_>, Status> {
        self.payload_out_with(bytes, self.shared.config.fill)
    }

    fn payload_out_with(
        &mut self,
        bytes: usize,
        policy: FillPolicy,
    ) -> Result<PayloadOut<'_>, Status> {
        let shared = &*self.shared;
        let out = self.out.insert(Out::begin(&self.target, bytes, policy, shared)?);
        Ok(PayloadOut { out, target: &self.target, shared })
    }

    /// The answer that says what went wrong, and how much is in the client's descriptor.
    fn failure(&self, status: Status) -> Answer<OwnedFd> {
        let relayed = self.out.as_ref().filter(|out| matches!(out.sink, Sink::Relayed));
        let bytes = relayed.map_or(0, |out| out.written);
        let status = if bytes > 0 { carried_out(status) } else { status };
        Answer::failure(status).after_relay(bytes)
    }

    /// The payload as it was written, ready to be sent.
    fn finish_payload(&mut self) -> Result<(Answer<OwnedFd>, Option<UsedMapping>), Status> {
        let mut answer = Answer {
            status: None,
            lane: LaneNumber::None,
            parts: Parts::default(),
            response: MessageBytes::new(),
            payload: None,
            sealed: None,
        };
        let Some(mut out) = self.out.take() else { return Ok((answer, None)) };
        answer.lane = out.lane();
        answer.parts = out.parts()?;
        let bytes = out.written;
        let mapping = match out.sink {
            Sink::Inline(memory) => {
                answer.payload = Some(memory);
                None
            }
            Sink::Sealed { draft, mut share } => {
                share.cut(bytes as u64);
                let lent = draft.seal(bytes).and_then(LentFile::lend);
                let (file, watch) = lent.map_err(|error| no_memory(bytes, &error))?;
                self.shared.accounts.lend(watch, share);
                answer.sealed = Some((file, 0));
                None
            }
            Sink::Object(object, offset) => {
                let file = object.descriptor().map_err(|error| no_memory(bytes, &error))?;
                answer.sealed = Some((file, offset as u64));
                None
            }
            Sink::Staged { draft, .. } => {
                let (given, gone) = self.give_staged(draft, bytes);
                if let Err(status) = gone {
                    self.out = Some(Out::relayed(usize::try_from(given).unwrap_or(usize::MAX)));
                    return Err(status);
                }
                None
            }
            sink => used_mapping(sink),
        };
        Ok((answer, mapping))
    }

    /// Sends the answer off, then gives back what the call has held; on the reactor, leaves both to
    /// it.
    fn complete(
        mut self: Box<Self>,
        answer: Answer<OwnedFd>,
        mapping: Option<UsedMapping>,
    ) -> State {
        let request_bytes = self.request_bytes;
        let (inline_bytes, may_wait) = (self.inline_bytes(), self.may_wait);
        let charge = self.charged_bytes.map(|bytes| Charge { bytes, inline_bytes, may_wait });
        self.count(&answer);
        self.target.fill.close_given();
        let mut keep = SmallVec::new();
        let mut unmap = None;
        match (mapping, &self.target.fill) {
            (Some((mapping, true)), FillTarget::Region { region, .. }) => {
                keep.push((region.key(), mapping));
            }
            (mapping, _) => unmap = mapping.map(|(mapping, _)| mapping),
        }
        if let Source::Region(region) = &self.upload.source
            && region.is_for_keeping
            && let Some(mapping) = &region.mapping
        {
            keep.push((region.region.key(), Arc::clone(mapping)));
        }
        if let Source::Unopened { .. } = self.upload.source
            && let Source::Unopened { descriptor, share, .. } =
                std::mem::replace(&mut self.upload.source, Source::None)
        {
            // Nobody has looked at it: closing it can wait for the client.
            undertaker::bury(share.uid(), (descriptor, share));
        }
        let mut completion = Box::new(Completion {
            connection: self.peer.key(),
            call: self.call,
            answer,
            keep,
            spent: None,
            request_bytes,
            charge,
        });
        // Given back first: the answer says that the client may call again.
        self.place = None;
        if let Source::Inline(memory) = &mut self.upload.source {
            memory.uncount();
        }
        // Unmapping and closing take their time: after the answer is on its way.
        if self.on_reactor {
            completion.spent = Some(Spent { _mapping: unmap, _open: self });
            return State::Answered(completion);
        }
        self.peer.complete(completion);
        drop((unmap, self));
        State::Gone
    }

    fn count(&self, answer: &Answer<OwnedFd>) {
        let lanes = &self.shared.stats.lanes;
        if answer.status.is_none() {
            lanes.count_answer(answer.lane.into(), answer.moved_bytes());
        }
    }
}

/// A mapping that a call has used, and whether it is to be kept.
type UsedMapping = (Arc<SharedMapping>, bool);

fn used_mapping(sink: Sink) -> Option<UsedMapping> {
    match sink {
        Sink::Map { mapping, is_for_keeping, .. } => Some((mapping, is_for_keeping)),
        _ => None,
    }
}

/// What becomes of what the client offers to be filled.
fn fill_target(
    fill: IncomingFill<OwnedFd, Arc<Region>>,
    mapping: &mut impl FnMut(&Region) -> Option<Arc<SharedMapping>>,
    account: &Holder,
    shared: &Shared,
) -> FillTarget {
    match fill {
        IncomingFill::None => FillTarget::None,
        IncomingFill::Region(IncomingSpan { region, offset }) => {
            let kept = mapping(&region);
            FillTarget::Region { region, offset: offset as usize, kept, is_registered: true }
        }
        IncomingFill::OneShot { descriptor, bytes } => {
            match Region::accept(descriptor, bytes, shared.charge(account, Whose::Client, bytes)) {
                Ok(region) => {
                    // A mapping is looked for here too, and never found: the region is new.
                    let kept = mapping(&region);
                    let region = Arc::new(region);
                    FillTarget::Region { region, offset: 0, kept, is_registered: false }
                }
                Err(rejected) => {
                    undertaker::bury(account.uid(), rejected.remains);
                    FillTarget::Refused(rejected.status)
                }
            }
        }
        // Not looked at here, for that is work.
        IncomingFill::Descriptor { descriptor } => {
            let share = match shared.config.descriptors {
                Descriptors::Refuse => Err(none_taken()),
                _ => shared.charge(account, Whose::Client, 0),
            };
            match share {
                Ok(share) => FillTarget::Unopened(descriptor, share),
                Err(status) => {
                    undertaker::bury(account.uid(), descriptor);
                    FillTarget::Refused(status)
                }
            }
        }
    }
}

/// What becomes of the bulk that came with a request. Memory files are not looked at here, for that
/// is work.
fn source(
    upload: IncomingUpload<OwnedFd, Arc<Region>>,
    mapping: &mut impl FnMut(&Region) -> Option<Arc<SharedMapping>>,
    account: &Holder,
    shared: &Shared,
) -> Source {
    match upload {
        IncomingUpload::None => Source::None,
        IncomingUpload::Inline(memory) => Source::Inline(memory),
        IncomingUpload::Region(IncomingSpan { region, offset }) => {
            let kept = mapping(&region);
            Source::region(region, offset, kept)
        }
        IncomingUpload::Sealed { descriptor, offset, bytes } => {
            match shared.charge(account, Whose::Client, offset.saturating_add(bytes)) {
                Ok(share) => Source::Unopened { descriptor, offset, share },
                Err(status) => {
                    undertaker::bury(account.uid(), descriptor);
                    Source::Refused(status)
                }
            }
        }
    }
}

impl Drop for InboundCall {
    fn drop(&mut self) {
        if let Some(open) = self.open_mut() {
            // Nobody will take the answer from here.
            open.on_reactor = false;
            self.leave_unanswered();
        }
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open").field("call", &self.call).finish_non_exhaustive()
    }
}

impl fmt::Debug for InboundCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboundCall")
            .field("method", &self.method())
            .field("request_bytes", &self.request().len())
            .field("payload_bytes_max", &self.payload_bytes_max())
            .finish_non_exhaustive()
    }
}

/// The failure of a call that was carried out: no code may say that it can be made again.
fn carried_out(status: Status) -> Status {
    match status.code {
        Code::ResourceExhausted | Code::Unavailable => Status::new(Code::DataLoss, status.message),
        _ => status,
    }
}

fn answered_already() -> Status {
    Status::new(Code::FailedPrecondition, "the call is answered or deferred already")
}
