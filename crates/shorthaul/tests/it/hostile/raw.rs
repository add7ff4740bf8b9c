//! A peer that speaks the protocol by hand: every byte is put together here, as docs/PROTOCOL.md
//! describes it, and nothing keeps it from lying.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

pub(crate) const HELLO: u8 = 1;
pub(crate) const CALL: u8 = 2;
pub(crate) const REPLY: u8 = 3;
pub(crate) const CANCEL: u8 = 4;
pub(crate) const REGISTER: u8 = 5;
pub(crate) const REGISTERED: u8 = 6;
pub(crate) const RELEASE: u8 = 7;
pub(crate) const NOTICE: u8 = 8;
pub(crate) const GOODBYE: u8 = 9;
pub(crate) const RINGS: u8 = 10;
pub(crate) const RINGS_TAKEN: u8 = 11;
pub(crate) const BELL: u8 = 12;

pub(crate) const OK: u32 = 0;
pub(crate) const CANCELLED: u32 = 1;
pub(crate) const INVALID_ARGUMENT: u32 = 3;
pub(crate) const DEADLINE_EXCEEDED: u32 = 4;
pub(crate) const NOT_FOUND: u32 = 5;
pub(crate) const PERMISSION_DENIED: u32 = 7;
pub(crate) const RESOURCE_EXHAUSTED: u32 = 8;
pub(crate) const OUT_OF_RANGE: u32 = 11;
pub(crate) const UNIMPLEMENTED: u32 = 12;

pub(crate) const LANE_NONE: u8 = 0;
pub(crate) const LANE_INLINE: u8 = 1;
pub(crate) const LANE_FILL_WRITE: u8 = 2;
pub(crate) const LANE_FILL_MAP: u8 = 3;
pub(crate) const LANE_SEALED: u8 = 4;
pub(crate) const LANE_DESCRIPTOR: u8 = 5;

/// "I can take sealed memory files".
pub(crate) const SEALED: u64 = 1;
/// "I relay into descriptors that calls bring".
pub(crate) const DESCRIPTORS: u64 = 2;

/// "I take frames out of rings".
pub(crate) const RINGS_FEATURE: u64 = 4;

/// A frame as it was received.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) body: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// A REPLY, REGISTERED or GOODBYE, taken apart.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) id: u64,
    pub(crate) code: u32,
    pub(crate) lane: u8,
    pub(crate) payload_bytes: u64,
    pub(crate) response: Vec<u8>,
    pub(crate) message: String,
    pub(crate) payload: Vec<u8>,
    /// Where in a sealed memory file the payload starts.
    pub(crate) offset: u64,
    /// Lengths of its parts; none if it is one.
    pub(crate) parts: Vec<u64>,
    /// The sealed memory file.
    pub(crate) file: Option<OwnedFd>,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) socket: UnixStream,
}

impl Raw {
    pub(crate) fn over(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket }
    }

    /// A client that has said nothing yet.
    pub(crate) fn connect(path: &Path) -> Self {
        Self::over(UnixStream::connect(path).unwrap())
    }

    /// A client that has exchanged hellos.
    pub(crate) fn open(path: &Path) -> Self {
        Self::open_with(path, 0)
    }

    /// A client with these features that has exchanged hellos.
    pub(crate) fn open_with(path: &Path, features: u64) -> Self {
        let mut raw = Self::connect(path);
        raw.send(&hello_with(features));
        raw.expect(HELLO);
        raw
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.send_with(bytes, &[]);
    }

    /// Sends bytes, and descriptors with the first of them. A peer that has hung up is passed over:
    /// reading finds out what it said before.
    pub(crate) fn send_with(&mut self, mut bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        while !bytes.is_empty() {
            let parts = [IoSlice::new(bytes)];
            match sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return,
                Err(error) => panic!("{error}"),
            }
            control = SendAncillaryBuffer::default();
        }
    }

    /// The next frame; none at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        let mut descriptors = Vec::new();
        let header = self.read(16, &mut descriptors)?;
        let body_bytes = u32_at(&header, 4) as usize;
        let payload_bytes = u64_at(&header, 8) as usize;
        assert_eq!(header[2..4], [0; 2], "reserved bytes are zero");
        assert_eq!(usize::from(header[1]), descriptors.len(), "descriptors come with the header");
        let body = self.read(body_bytes, &mut descriptors)?;
        let payload = self.read(payload_bytes, &mut descriptors)?;
        assert_eq!(usize::from(header[1]), descriptors.len(), "and not later");
        Some(Frame { kind: header[0], body, payload, descriptors })
    }

    pub(crate) fn expect(&mut self, kind: u8) -> Frame {
        let frame = self.next().expect("a frame, not the end");
        assert_eq!(frame.kind, kind, "{frame:?}");
        frame
    }

    pub(crate) fn reply(&mut self) -> Answer {
        let Frame { body, payload, mut descriptors, .. } = self.expect(REPLY);
        let (lane, parts) = (body[12], u16_at(&body, 14));
        let (response_bytes, message_bytes) = (u32_at(&body, 24), u32_at(&body, 28));
        let (table, texts) = body[40..].split_at(usize::from(parts) * 8);
        let (response, message) = texts.split_at(response_bytes as usize);
        assert_eq!(message.len(), message_bytes as usize);
        assert_eq!(body[13], 0, "reserved");
        assert_eq!(descriptors.len(), usize::from(lane == LANE_SEALED));
        assert!(lane == LANE_SEALED || u64_at(&body, 32) == 0, "an offset into nothing");
        Answer {
            id: u64_at(&body, 0),
            code: u32_at(&body, 8),
            lane,
            payload_bytes: u64_at(&body, 16),
            response: response.to_vec(),
            message: String::from_utf8(message.to_vec()).unwrap(),
            payload,
            offset: u64_at(&body, 32),
            parts: (0..usize::from(parts)).map(|part| u64_at(table, part * 8)).collect(),
            file: descriptors.pop(),
        }
    }

    pub(crate) fn registered(&mut self) -> Answer {
        let body = self.expect(REGISTERED).body;
        status(u64_at(&body, 0), &body[8..])
    }

    pub(crate) fn rings_taken(&mut self) -> Answer {
        status(0, &self.expect(RINGS_TAKEN).body)
    }

    /// The goodbye, which must be followed by the end; replies before it are passed over.
    pub(crate) fn goodbye(&mut self) -> Answer {
        let mut frame = self.next().expect("a goodbye, not the end");
        while frame.kind == REPLY || frame.kind == REGISTERED || frame.kind == HELLO {
            frame = self.next().expect("a goodbye, not the end");
        }
        assert_eq!(frame.kind, GOODBYE, "{frame:?}");
        self.end();
        status(0, &frame.body)
    }

    /// The end of the stream.
    pub(crate) fn end(&mut self) {
        if let Some(frame) = self.next() {
            panic!("{frame:?} where the end should be");
        }
    }

    fn read(&mut self, bytes: usize, descriptors: &mut Vec<OwnedFd>) -> Option<Vec<u8>> {
        let mut found = vec![0; bytes];
        let mut filled = 0;
        while filled < bytes {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut found[filled..])];
            match recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) if received.bytes == 0 => return None,
                Ok(received) => filled += received.bytes,
                Err(rustix::io::Errno::INTR) => {}
                // Closed with bytes of ours unread, which is the end too.
                Err(rustix::io::Errno::CONNRESET) => return None,
                Err(error) => panic!("{error}"),
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(arrived) = message {
                    descriptors.extend(arrived);
                }
            }
        }
        Some(found)
    }
}

pub(crate) fn frame(kind: u8, descriptors: u8, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = header(kind, descriptors, body.len() as u32, payload.len() as u64);
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(payload);
    bytes
}

pub(crate) fn header(kind: u8, descriptors: u8, body_bytes: u32, payload_bytes: u64) -> Vec<u8> {
    let mut bytes = vec![kind, descriptors, 0, 0];
    bytes.extend_from_slice(&body_bytes.to_le_bytes());
    bytes.extend_from_slice(&payload_bytes.to_le_bytes());
    bytes
}

pub(crate) fn hello() -> Vec<u8> {
    hello_of(1, 1)
}

pub(crate) fn hello_of(version_min: u16, version_max: u16) -> Vec<u8> {
    hello_body(version_min, version_max, 0)
}

pub(crate) fn hello_with(features: u64) -> Vec<u8> {
    hello_body(1, 1, features)
}

fn hello_body(version_min: u16, version_max: u16, features: u64) -> Vec<u8> {
    let mut body = b"shorthl\0".to_vec();
    body.extend_from_slice(&version_min.to_le_bytes());
    body.extend_from_slice(&version_max.to_le_bytes());
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(&features.to_le_bytes());
    for limit in [128_u32, 256, 65_536, 0] {
        body.extend_from_slice(&limit.to_le_bytes());
    }
    for limit in [128_u64 << 20, 16 << 30] {
        body.extend_from_slice(&limit.to_le_bytes());
    }
    frame(HELLO, 0, &body, b"")
}

/// What a call offers for the payload of its answer, as numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) fill: u8,
    pub(crate) region: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) inline_bytes: u64,
    pub(crate) inline_first_bytes: u32,
    pub(crate) sealed_bytes: u64,
}

impl Place {
    pub(crate) const NONE: Self = Self {
        fill: 0,
        region: 0,
        offset: 0,
        bytes: 0,
        inline_bytes: 0,
        inline_first_bytes: 0,
        sealed_bytes: 0,
    };

    pub(crate) const fn inline(inline_bytes: u64) -> Self {
        Self { inline_bytes, ..Self::NONE }
    }

    pub(crate) const fn sealed(sealed_bytes: u64) -> Self {
        Self { sealed_bytes, ..Self::NONE }
    }

    pub(crate) const fn region(region: u64, offset: u64, bytes: u64) -> Self {
        Self { fill: 1, region, offset, bytes, ..Self::NONE }
    }

    pub(crate) const fn one_shot(bytes: u64) -> Self {
        Self { fill: 2, bytes, ..Self::NONE }
    }

    pub(crate) const fn given(bytes: u64) -> Self {
        Self { fill: 3, bytes, ..Self::NONE }
    }
}

/// Bulk that lies elsewhere than behind its call, as numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Upload {
    pub(crate) number: u8,
    pub(crate) region: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Upload {
    pub(crate) const NONE: Self = Self { number: 0, region: 0, offset: 0, bytes: 0 };

    pub(crate) const fn region(region: u64, offset: u64, bytes: u64) -> Self {
        Self { number: 1, region, offset, bytes }
    }

    pub(crate) const fn sealed(offset: u64, bytes: u64) -> Self {
        Self { number: 2, region: 0, offset, bytes }
    }
}

pub(crate) fn call(id: u64, place: Place, method: &[u8], request: &[u8]) -> Vec<u8> {
    call_with(id, place, method, request, b"")
}

pub(crate) fn call_with(
    id: u64,
    place: Place,
    method: &[u8],
    request: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let body = call_body(id, (place, Upload::NONE), &[], method, request);
    frame(CALL, u8::from(place.fill >= 2), &body, payload)
}

/// A call of the method that answers with what it was sent, with bulk that lies elsewhere.
pub(crate) fn echo(id: u64, place: Place, upload: Upload) -> Vec<u8> {
    echo_parts(id, place, upload, &[])
}

pub(crate) fn echo_parts(id: u64, place: Place, upload: Upload, parts: &[u64]) -> Vec<u8> {
    upload_to(b"echo", id, place, upload, parts)
}

pub(crate) fn upload_to(
    method: &[u8],
    id: u64,
    place: Place,
    upload: Upload,
    parts: &[u64],
) -> Vec<u8> {
    let descriptors = u8::from(place.fill >= 2) + u8::from(upload.number == 2);
    frame(CALL, descriptors, &call_body(id, (place, upload), parts, method, b""), b"")
}

fn call_body(
    id: u64,
    (place, upload): (Place, Upload),
    parts: &[u64],
    method: &[u8],
    request: &[u8],
) -> Vec<u8> {
    let mut body = id.to_le_bytes().to_vec();
    body.extend_from_slice(&[0; 8]);
    body.extend_from_slice(&[place.fill, upload.number]);
    body.extend_from_slice(&(method.len() as u16).to_le_bytes());
    body.extend_from_slice(&(request.len() as u32).to_le_bytes());
    for field in [place.region, place.offset, place.bytes, place.inline_bytes, place.sealed_bytes] {
        body.extend_from_slice(&field.to_le_bytes());
    }
    for field in [upload.region, upload.offset, upload.bytes] {
        body.extend_from_slice(&field.to_le_bytes());
    }
    body.extend_from_slice(&place.inline_first_bytes.to_le_bytes());
    body.extend_from_slice(&(parts.len() as u16).to_le_bytes());
    body.extend_from_slice(&[0; 2]);
    parts.iter().for_each(|length| body.extend_from_slice(&length.to_le_bytes()));
    body.extend_from_slice(method);
    body.extend_from_slice(request);
    body
}

/// A call of the method that fills a payload with a pattern.
pub(crate) fn fill(id: u64, place: Place, bytes: u64, seed: u8) -> Vec<u8> {
    let mut request = bytes.to_le_bytes().to_vec();
    request.push(seed);
    call(id, place, b"fill", &request)
}

/// The same, by pwrite(2).
pub(crate) fn fill_by_writing(id: u64, place: Place, bytes: u64, seed: u8) -> Vec<u8> {
    let mut request = bytes.to_le_bytes().to_vec();
    request.push(seed);
    call(id, place, b"fill by writing", &request)
}

pub(crate) fn register(region: u64, bytes: u64) -> Vec<u8> {
    let body = [region.to_le_bytes(), bytes.to_le_bytes()].concat();
    frame(REGISTER, 1, &body, b"")
}

pub(crate) fn of_id(kind: u8, id: u64) -> Vec<u8> {
    frame(kind, 0, &id.to_le_bytes(), b"")
}

/// The body of a REPLY.
pub(crate) fn reply_body(id: u64, code: u32, lane: u8, payload_bytes: u64) -> Vec<u8> {
    reply_body_at(id, code, lane, payload_bytes, 0)
}

pub(crate) fn reply_body_at(
    id: u64,
    code: u32,
    lane: u8,
    payload_bytes: u64,
    offset: u64,
) -> Vec<u8> {
    let mut body = id.to_le_bytes().to_vec();
    body.extend_from_slice(&code.to_le_bytes());
    body.extend_from_slice(&[lane, 0, 0, 0]);
    body.extend_from_slice(&payload_bytes.to_le_bytes());
    body.extend_from_slice(&[0; 8]);
    body.extend_from_slice(&offset.to_le_bytes());
    body
}

/// The body of a GOODBYE.
pub(crate) fn goodbye_body(code: u32, message: &str) -> Vec<u8> {
    let mut body = code.to_le_bytes().to_vec();
    body.extend_from_slice(&(message.len() as u32).to_le_bytes());
    body.extend_from_slice(message.as_bytes());
    body
}

fn status(id: u64, body: &[u8]) -> Answer {
    assert_eq!(u32_at(body, 4) as usize, body.len() - 8);
    Answer {
        id,
        code: u32_at(body, 0),
        lane: LANE_NONE,
        payload_bytes: 0,
        response: Vec::new(),
        message: String::from_utf8(body[8..].to_vec()).unwrap(),
        payload: Vec::new(),
        offset: 0,
        parts: Vec::new(),
        file: None,
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Longer than anything takes; only to end a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);
