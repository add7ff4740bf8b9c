//! What calls may offer and bring, and how they may be answered: all of it, in some order.

use super::choices::Random;
use super::pair::{LIMITS, Plan};
use crate::limits::PAYLOAD_ALIGNMENT;
use crate::parts::{Parts, parts_bytes};
use crate::wire::{Fill, LaneNumber, Room, Span, Upload};

/// A call. Should it name parts of regions, then these: one to be filled, one that brings bulk.
pub(super) fn some_plan(random: &mut Random, [to_fill, with_bulk]: [Span; 2]) -> Plan {
    let room = some_room(random, to_fill);
    let (upload, parts) = some_upload(random, with_bulk);
    Plan { room, upload, parts }
}

fn some_room(random: &mut Random, span: Span) -> Room {
    let fill = match random.below(4) {
        0 => Fill::None,
        1 => Fill::Region(span),
        // What goes there is nobody's memory, so that it has no limit.
        2 => Fill::Descriptor { bytes: random.up_to(1 << 40) },
        _ => Fill::OneShot { bytes: random.up_to(LIMITS.region_bytes_max + 9) },
    };
    let inline_bytes = match random.below(2) {
        0 => 0,
        _ => random.up_to(LIMITS.inline_bytes_max),
    };
    let inline_first_bytes = random.up_to(inline_bytes) as u32;
    let sealed_bytes = match random.below(2) {
        0 => 0,
        _ => random.up_to(1 << 40),
    };
    Room { fill, inline_bytes, inline_first_bytes, sealed_bytes }
}

fn some_upload(random: &mut Random, span: Span) -> (Upload, Parts) {
    let bytes_max = LIMITS.region_bytes_max + 9;
    match random.below(4) {
        0 => (Upload::None, Parts::default()),
        1 => {
            let parts = some_parts(random, LIMITS.inline_bytes_max);
            match parts.bytes() as u64 {
                0 => (Upload::None, parts),
                bytes => (Upload::Inline { bytes }, parts),
            }
        }
        2 => {
            let parts = some_parts(random, span.bytes);
            (Upload::Region(Span { bytes: parts.bytes() as u64, ..span }), parts)
        }
        _ => {
            let parts = some_parts(random, bytes_max);
            let bytes = parts.bytes() as u64;
            let offset = random.up_to(bytes_max) / PAYLOAD_ALIGNMENT * PAYLOAD_ALIGNMENT;
            let offset = offset + u64::from(random.once_in(20));
            (Upload::Sealed { offset, bytes }, parts)
        }
    }
}

/// The lanes that an answer may take, and how many bytes by each.
pub(super) fn lanes(room: &Room) -> Vec<(LaneNumber, u64)> {
    let mut lanes = vec![(LaneNumber::None, 0)];
    if room.inline_bytes_max() > 0 {
        lanes.push((LaneNumber::Inline, room.inline_bytes_max().min(LIMITS.inline_bytes_max)));
    }
    if let Fill::Descriptor { bytes } = room.fill {
        lanes.push((LaneNumber::Descriptor, bytes));
    }
    if room.fill.is_memory() {
        lanes.push((LaneNumber::FillMap, room.fill.bytes()));
        lanes.push((LaneNumber::FillWrite, room.fill.bytes()));
    }
    if room.sealed_bytes > 0 {
        lanes.push((LaneNumber::Sealed, room.sealed_bytes));
    }
    if lanes.len() > 1 {
        lanes.remove(0);
    }
    lanes
}

/// Parts of a payload of at most `bytes_max` bytes.
pub(super) fn some_parts(random: &mut Random, bytes_max: u64) -> Parts {
    let count = random.below(4) + 2;
    let share = bytes_max / count;
    if share < 64 || !random.once_in(3) {
        return Parts::one(random.up_to(bytes_max) as usize);
    }
    // Each takes up its share at most, with what is between it and the next.
    let lengths: Vec<usize> = (0..count).map(|_| random.up_to(share - 63) as usize).collect();
    let bytes = parts_bytes(&lengths).unwrap() as u64;
    let lengths = lengths.into_iter().map(|length| length as u64);
    Parts::of_lengths(bytes, lengths.collect::<Vec<_>>().into_iter()).unwrap()
}
