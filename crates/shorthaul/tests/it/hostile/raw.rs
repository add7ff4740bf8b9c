//! A peer that speaks the protocol by hand: every byte is put together here, as docs/PROTOCOL.md
//! describes it, and nothing keeps it from lying.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

pub(crate) const HELLO: u8 = 1;
pub(crate) const CALL: u8 = 2;
pub(crate) const REPLY: u8 = 3;
pub(crate) const CANCEL: u8 = 4;
pub(crate) const REGISTER: u8 = 5;
pub(crate) const REGISTERED: u8 = 6;
pub(crate) const RELEASE: u8 = 7;
pub(crate) const NOTICE: u8 = 8;
pub(crate) const GOODBYE: u8 = 9;

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

/// A frame as it was received.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) body: Vec<u8>,
    pub(crate) payload: Vec<u8>,
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
        let mut raw = Self::connect(path);
        raw.send(&hello());
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
        let header = self.read(16)?;
        let body_bytes = u32_at(&header, 4) as usize;
        let payload_bytes = u64_at(&header, 8) as usize;
        assert_eq!(header[2..4], [0; 2], "reserved bytes are zero");
        Some(Frame {
            kind: header[0],
            body: self.read(body_bytes)?,
            payload: self.read(payload_bytes)?,
        })
    }

    pub(crate) fn expect(&mut self, kind: u8) -> Frame {
        let frame = self.next().expect("a frame, not the end");
        assert_eq!(frame.kind, kind, "{frame:?}");
        frame
    }

    pub(crate) fn reply(&mut self) -> Answer {
        let Frame { body, payload, .. } = self.expect(REPLY);
        let (response_bytes, message_bytes) = (u32_at(&body, 24), u32_at(&body, 28));
        let (response, message) = body[32..].split_at(response_bytes as usize);
        assert_eq!(message.len(), message_bytes as usize);
        assert_eq!(body[13..16], [0; 3], "reserved");
        Answer {
            id: u64_at(&body, 0),
            code: u32_at(&body, 8),
            lane: body[12],
            payload_bytes: u64_at(&body, 16),
            response: response.to_vec(),
            message: String::from_utf8(message.to_vec()).unwrap(),
            payload,
        }
    }

    pub(crate) fn registered(&mut self) -> Answer {
        let body = self.expect(REGISTERED).body;
        status(u64_at(&body, 0), &body[8..])
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

    fn read(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let mut found = vec![0; bytes];
        match self.socket.read_exact(&mut found) {
            Ok(()) => Some(found),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => None,
            // Closed with bytes of ours unread, which is the end too.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
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
    let mut body = b"shorthl\0".to_vec();
    body.extend_from_slice(&version_min.to_le_bytes());
    body.extend_from_slice(&version_max.to_le_bytes());
    body.extend_from_slice(&[0; 12]);
    for limit in [128_u32, 256, 65_536, 0] {
        body.extend_from_slice(&limit.to_le_bytes());
    }
    for limit in [128_u64 << 20, 16 << 30] {
        body.extend_from_slice(&limit.to_le_bytes());
    }
    frame(HELLO, 0, &body, b"")
}

/// Where a call wants its payload, as numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) number: u8,
    pub(crate) region: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Place {
    pub(crate) const NONE: Self = Self::of(0, 0, 0, 0);

    pub(crate) const fn inline(bytes: u64) -> Self {
        Self::of(1, 0, 0, bytes)
    }

    pub(crate) const fn region(region: u64, offset: u64, bytes: u64) -> Self {
        Self::of(2, region, offset, bytes)
    }

    pub(crate) const fn one_shot(bytes: u64) -> Self {
        Self::of(3, 0, 0, bytes)
    }

    const fn of(number: u8, region: u64, offset: u64, bytes: u64) -> Self {
        Self { number, region, offset, bytes }
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
    let mut body = id.to_le_bytes().to_vec();
    body.extend_from_slice(&[0; 8]);
    body.extend_from_slice(&[place.number, 0]);
    body.extend_from_slice(&(method.len() as u16).to_le_bytes());
    body.extend_from_slice(&(request.len() as u32).to_le_bytes());
    for field in [place.region, place.offset, place.bytes] {
        body.extend_from_slice(&field.to_le_bytes());
    }
    body.extend_from_slice(method);
    body.extend_from_slice(request);
    frame(CALL, u8::from(place.number == 3), &body, payload)
}

/// A call of the method that fills a payload with a pattern.
pub(crate) fn fill(id: u64, place: Place, bytes: u64, seed: u8) -> Vec<u8> {
    let mut request = bytes.to_le_bytes().to_vec();
    request.push(seed);
    call(id, place, b"fill", &request)
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
    let mut body = id.to_le_bytes().to_vec();
    body.extend_from_slice(&code.to_le_bytes());
    body.extend_from_slice(&[lane, 0, 0, 0]);
    body.extend_from_slice(&payload_bytes.to_le_bytes());
    body.extend_from_slice(&[0; 8]);
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
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Longer than anything takes; only to end a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);
