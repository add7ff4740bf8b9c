//! Bytes and descriptors in every order and portion that a stream can bring them in.

use std::time::Duration;

use smallvec::SmallVec;

use super::*;
use crate::wire::{Call, Place, Reply};
use crate::{error::Code, wire::LaneNumber};

/// A descriptor that is counted: the number of handles is the number of descriptors open.
type Token = Arc<()>;

/// An assembler, and what feeds it.
struct Wire {
    assembler: Assembler<Token>,
    origin: Token,
    now: Instant,
}

/// A frame that came out, as bytes again.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    head: Vec<u8>,
    payload: Vec<u8>,
    descriptor: Option<Token>,
    is_lost: bool,
}

/// What one read led to: frames, and what was wrong in the end.
type Outcome = (Vec<Seen>, Option<Violation>);

impl Wire {
    fn new() -> Self {
        Self {
            assembler: Assembler::new(Limits::default(), Arc::new(MemoryPool::default())),
            origin: Arc::new(()),
            now: Instant::now(),
        }
    }

    /// Descriptors that nobody has closed.
    fn open_descriptors(&self) -> usize {
        Arc::strong_count(&self.origin) - 1
    }

    fn some(&self, count: usize) -> Arrival<Token> {
        Arrival::Some((0..count).map(|_| Arc::clone(&self.origin)).collect())
    }

    /// One read of all of `bytes`.
    fn read(&mut self, bytes: &[u8], arrival: Arrival<Token>) -> Outcome {
        self.assembler.space()[..bytes.len()].copy_from_slice(bytes);
        if let Err(violation) = self.assembler.commit(bytes.len(), arrival, self.now) {
            return (Vec::new(), Some(violation));
        }
        let mut seen = Vec::new();
        loop {
            match self.assembler.next() {
                Ok(Some(assembled)) => seen.push(see(assembled)),
                Ok(None) => return (seen, None),
                Err(violation) => return (seen, Some(violation)),
            }
        }
    }

    /// Reads as large as there is room for; the one that brings the byte at `descriptor_at` brings
    /// a descriptor. Returns the frames and the number of reads.
    fn read_all(&mut self, bytes: &[u8], descriptor_at: Option<usize>) -> (Vec<Seen>, usize) {
        let (mut all, mut reads, mut at) = (Vec::new(), 0, 0);
        while at < bytes.len() {
            let end = bytes.len().min(at + self.assembler.space().len());
            let brings = descriptor_at.is_some_and(|descriptor| (at..end).contains(&descriptor));
            let arrival = if brings { self.some(1) } else { Arrival::None };
            let (seen, violation) = self.read(&bytes[at..end], arrival);
            assert_eq!(violation, None);
            all.extend(seen);
            (at, reads) = (end, reads + 1);
        }
        (all, reads)
    }
}

fn see(assembled: Assembled<'_, Token>) -> Seen {
    let payload = assembled.payload.map_or(Vec::new(), |memory| memory.to_vec());
    let is_lost = matches!(assembled.descriptor, Some(Claim::Lost));
    let descriptor = match assembled.descriptor {
        Some(Claim::Arrived(descriptor)) => Some(descriptor),
        _ => None,
    };
    Seen {
        head: assembled.frame.encode(payload.len() as u64).to_vec(),
        payload,
        descriptor,
        is_lost,
    }
}

fn cancel(call: u64) -> Vec<u8> {
    Frame::Cancel { call }.encode(0).to_vec()
}

fn register(region: u64) -> Vec<u8> {
    Frame::Register { region, bytes: 64 }.encode(0).to_vec()
}

fn call_with(payload: &[u8], request: &[u8]) -> Vec<u8> {
    let call = Call { call: 1, remaining_ns: 0, place: Place::None, method: "m", request };
    let mut bytes = Frame::Call(call).encode(payload.len() as u64).to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn one_shot(payload: &[u8]) -> Vec<u8> {
    let call = Call {
        call: 1,
        remaining_ns: 0,
        place: Place::OneShot { bytes: 64 },
        method: "m",
        request: b"",
    };
    let mut bytes = Frame::Call(call).encode(payload.len() as u64).to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

fn bytes_of(seen: &[Seen]) -> Vec<u8> {
    seen.iter().flat_map(|frame| [&frame.head[..], &frame.payload].concat()).collect()
}

#[test]
fn bytes_come_one_at_a_time() {
    let payload = pattern(300);
    let stream = [cancel(1), call_with(&payload, b"request"), cancel(2)].concat();
    let mut wire = Wire::new();
    let mut all = Vec::new();
    for byte in &stream {
        let (seen, violation) = wire.read(&[*byte], Arrival::None);
        assert_eq!(violation, None);
        all.extend(seen);
    }
    assert_eq!(all.len(), 3);
    assert_eq!(bytes_of(&all), stream);
    assert_eq!(wire.assembler.deadline(), None, "no frame is under way");
}

#[test]
fn many_frames_come_in_one_read() {
    let stream: Vec<u8> = (0..100).flat_map(cancel).collect();
    let mut wire = Wire::new();
    let (seen, violation) = wire.read(&stream, Arrival::None);
    assert_eq!((seen.len(), violation), (100, None));
    assert_eq!(bytes_of(&seen), stream);
}

#[test]
fn every_cut_into_two_reads_gives_the_same() {
    let stream = [cancel(1), call_with(b"payload", b"request"), register(3), cancel(4)].concat();
    let register_at = stream.len() - cancel(4).len() - register(3).len();
    for cut in 1..stream.len() {
        let mut wire = Wire::new();
        let in_first = (register_at < cut).then_some(register_at);
        let (mut seen, _) = wire.read_all(&stream[..cut], in_first);
        let (rest, _) = wire.read_all(&stream[cut..], register_at.checked_sub(cut));
        seen.extend(rest);
        assert_eq!(bytes_of(&seen), stream, "cut at {cut}");
        assert!(seen[2].descriptor.is_some(), "cut at {cut}");
        drop(seen);
        assert_eq!(wire.open_descriptors(), 0);
    }
}

#[test]
fn a_payload_larger_than_the_staging_is_read_in_place() {
    let payload = pattern(5 * STAGING_BYTES + 77);
    let stream = [call_with(&payload, b"r"), cancel(2)].concat();
    let mut wire = Wire::new();
    let (seen, reads) = wire.read_all(&stream, None);
    assert_eq!(bytes_of(&seen), stream);
    assert_eq!(reads, 3, "the staging, the rest of the payload, what follows");
    assert_eq!(wire.assembler.staging.len(), STAGING_BYTES);
}

/// Bodies grow the staging to what a message may be, and no further.
#[test]
fn a_body_larger_than_the_staging_is_whole() {
    let request = pattern(Limits::default().message_bytes_max as usize);
    let stream = [cancel(1), call_with(b"payload", &request), cancel(2)].concat();
    let mut wire = Wire::new();
    let (seen, _) = wire.read_all(&stream, None);
    assert_eq!(bytes_of(&seen), stream);
    assert!(wire.assembler.staging.len() < request.len() + STAGING_BYTES);
}

#[test]
fn a_descriptor_is_claimed_by_the_frame_it_came_with() {
    let mut wire = Wire::new();
    let arrival = wire.some(1);
    // Earlier bytes are joined to those of the descriptor.
    let (seen, violation) = wire.read(&[cancel(1), register(2)].concat(), arrival);
    assert_eq!((seen.len(), violation), (2, None));
    assert_eq!(seen[0].descriptor, None);
    assert!(seen[1].descriptor.is_some());
    drop(seen);
    assert_eq!(wire.open_descriptors(), 0);
}

#[test]
fn a_descriptor_waits_for_the_rest_of_its_header() {
    let frame = register(2);
    for cut in 1..frame.len() {
        let mut wire = Wire::new();
        let arrival = wire.some(1);
        let (seen, violation) = wire.read(&frame[..cut], arrival);
        assert_eq!((seen.len(), violation), (0, None), "cut at {cut}");
        assert_eq!(wire.open_descriptors(), 1);
        let (seen, violation) = wire.read(&frame[cut..], Arrival::None);
        assert_eq!(violation, None, "cut at {cut}");
        assert!(seen[0].descriptor.is_some());
    }
}

#[test]
fn a_descriptor_waits_for_the_payload_of_its_frame() {
    let frame = one_shot(b"payload");
    let mut wire = Wire::new();
    let arrival = wire.some(1);
    let (seen, _) = wire.read(&frame[..frame.len() - 1], arrival);
    assert!(seen.is_empty());
    let (seen, violation) = wire.read(&frame[frame.len() - 1..], Arrival::None);
    assert_eq!(violation, None);
    assert_eq!(bytes_of(&seen), frame);
    assert!(seen[0].descriptor.is_some());
}

#[test]
fn a_descriptor_behind_the_first_byte_is_refused() {
    let frame = register(2);
    for cut in 1..frame.len() {
        let mut wire = Wire::new();
        wire.read(&frame[..cut], Arrival::None);
        let arrival = wire.some(1);
        let (seen, violation) = wire.read(&frame[cut..], arrival);
        assert!(seen.is_empty(), "cut at {cut}");
        assert!(violation.is_some(), "cut at {cut}");
        drop(wire.assembler);
        assert_eq!(Arc::strong_count(&wire.origin), 1, "cut at {cut}");
    }
}

#[test]
fn a_second_set_inside_a_frame_is_refused() {
    for frame in [register(2), one_shot(b"payload")] {
        for cut in 1..frame.len() {
            let mut wire = Wire::new();
            let arrival = wire.some(1);
            let (_, violation) = wire.read(&frame[..cut], arrival);
            assert_eq!(violation, None);
            let arrival = wire.some(1);
            let (seen, violation) = wire.read(&frame[cut..], arrival);
            assert_eq!(violation, Some(Violation::UnclaimedDescriptors), "cut at {cut}");
            drop(seen);
            drop(wire.assembler);
            assert_eq!(Arc::strong_count(&wire.origin), 1, "cut at {cut}");
        }
    }
}

#[test]
fn a_descriptor_on_a_frame_that_takes_none_is_refused() {
    for stream in [cancel(1), call_with(b"", b"r"), [cancel(1), cancel(2)].concat()] {
        let mut wire = Wire::new();
        let arrival = wire.some(1);
        let (_, violation) = wire.read(&stream, arrival);
        assert_eq!(violation, Some(Violation::UnclaimedDescriptors));
    }
    // Already while the frame is incomplete, once its header says that it takes none.
    let mut wire = Wire::new();
    let arrival = wire.some(1);
    let (_, violation) = wire.read(&cancel(1)[..HEADER_BYTES], arrival);
    assert_eq!(violation, Some(Violation::UnclaimedDescriptors));
}

#[test]
fn a_descriptor_inside_a_payload_is_refused() {
    let frame = call_with(&pattern(100), b"r");
    let mut wire = Wire::new();
    wire.read(&frame[..frame.len() - 50], Arrival::None);
    let arrival = wire.some(1);
    let (seen, violation) = wire.read(&frame[frame.len() - 50..], arrival);
    assert!(violation.is_some());
    drop((seen, wire.assembler));
    assert_eq!(Arc::strong_count(&wire.origin), 1);
}

#[test]
fn fewer_or_more_descriptors_than_announced_are_refused() {
    let announced = Violation::DescriptorCount { announced: 1 };
    for count in [0, 2, 3, 4] {
        let mut wire = Wire::new();
        let arrival = match count {
            0 => Arrival::None,
            count => wire.some(count),
        };
        let (seen, violation) = wire.read(&register(1), arrival);
        assert!(seen.is_empty());
        assert_eq!(violation, Some(announced), "{count} descriptors");
        assert_eq!(wire.open_descriptors(), count, "not closed where they are refused");
        let origin = Arc::clone(&wire.origin);
        drop(wire);
        assert_eq!(Arc::strong_count(&origin), 1, "closed with their connection");
    }
    let mut wire = Wire::new();
    let (_, violation) = wire.read(&register(1), Arrival::TooMany(SmallVec::new()));
    assert_eq!(violation, Some(Violation::TooManyDescriptors));
}

/// Lost descriptors are the claim of their own frame, so that those of later ones don't shift.
#[test]
fn a_lost_descriptor_is_missing_in_its_own_frame_alone() {
    let mut wire = Wire::new();
    let (seen, violation) = wire.read(&register(1), Arrival::Lost(SmallVec::new()));
    assert_eq!(violation, None);
    assert!(seen[0].is_lost && seen[0].descriptor.is_none());
    let arrival = wire.some(1);
    let (seen, violation) = wire.read(&register(2), arrival);
    assert_eq!(violation, None);
    assert!(!seen[0].is_lost && seen[0].descriptor.is_some());
    let (_, violation) = wire.read(&cancel(3), Arrival::Lost(SmallVec::new()));
    assert_eq!(violation, Some(Violation::UnclaimedDescriptors));
}

#[test]
fn each_of_many_descriptors_goes_to_its_frame() {
    let mut wire = Wire::new();
    for region in 0..1000 {
        let arrival = wire.some(1);
        let (seen, violation) = wire.read(&[cancel(region), register(region)].concat(), arrival);
        assert_eq!(violation, None);
        assert_eq!(seen[1].head, register(region));
        assert!(seen[1].descriptor.is_some());
    }
    assert_eq!(wire.open_descriptors(), 0);
}

#[test]
fn a_header_that_announces_too_much_allocates_nothing() {
    let mut of_call = call_with(b"", b"");
    of_call.truncate(HEADER_BYTES);
    let reply = Reply {
        call: 1,
        code: Code::Ok,
        lane: LaneNumber::Inline,
        payload_bytes: u64::MAX,
        response: b"",
        message: "",
    };
    let of_reply = Frame::Reply(reply).encode(u64::MAX)[..HEADER_BYTES].to_vec();
    for header in [of_call, of_reply] {
        for (at, bytes) in [(4, 4), (8, 8)] {
            let mut header = header.clone();
            header[at..at + bytes].fill(0xff);
            let mut wire = Wire::new();
            let (seen, violation) = wire.read(&header, Arrival::None);
            assert!(seen.is_empty());
            assert!(matches!(violation, Some(Violation::Wire(_))), "{violation:?}");
            assert_eq!(wire.assembler.staging.capacity(), STAGING_BYTES);
            assert!(matches!(wire.assembler.state, State::Header));
        }
    }
}

/// Room is made for a body only when its header is here, and then only for what is allowed.
#[test]
fn the_largest_body_allowed_is_all_that_is_made_room_for() {
    let request = pattern(Limits::default().message_bytes_max as usize);
    let frame = call_with(b"", &request);
    let mut wire = Wire::new();
    wire.read(&frame[..HEADER_BYTES], Arrival::None);
    wire.assembler.space();
    let staging_bytes = wire.assembler.staging.len();
    assert!((frame.len()..frame.len() + STAGING_BYTES).contains(&staging_bytes));
}

#[test]
fn a_frame_must_keep_growing_but_not_while_nobody_reads() {
    let mut wire = Wire::new();
    assert_eq!(wire.assembler.deadline(), None);
    let start = wire.now;
    wire.read(&cancel(1)[..5], Arrival::None);
    assert_eq!(wire.assembler.deadline(), Some(start + FRAME_STALL_TIMEOUT));
    let later = start + Duration::from_secs(9);
    wire.now = later;
    wire.read(&cancel(1)[5..10], Arrival::None);
    assert_eq!(wire.assembler.deadline(), Some(later + FRAME_STALL_TIMEOUT));
    let much_later = start + Duration::from_secs(60);
    wire.assembler.pause_reading();
    assert_eq!(wire.assembler.deadline(), None);
    wire.assembler.resume_reading(much_later);
    let again = Some(much_later + FRAME_STALL_TIMEOUT);
    assert_eq!(wire.assembler.deadline(), again);
    wire.read(&cancel(1)[10..], Arrival::None);
    assert_eq!(wire.assembler.deadline(), None, "no frame is under way");
}
