//! Into memory of this process: the kernel reads straight into the mapping.

use std::ops::Range;

use shorthaul_platform::memory::SharedMapping;

use super::flow::{End, Flow, Halt};
use super::outcome::Fault;

/// Moves what is left to the start of `room`.
pub(super) fn run(
    flow: &mut Flow<'_>,
    memory: &SharedMapping,
    room: Range<usize>,
) -> Result<(), Halt> {
    flow.patience.check()?;
    if let Some(bytes) = flow.bytes.filter(|&bytes| bytes > room.len() as u64) {
        let room = room.len();
        let message = format!("{bytes} bytes don't fit into the {room} bytes that there are");
        return Err(Halt::Fault(Fault::Misuse(message)));
    }
    let mut at = room.start;
    // Ends with the range, the room or the source, one chunk or an error further each turn.
    while at < room.end && flow.next_chunk() > 0 {
        let bytes = flow.next_chunk().min(room.end - at);
        let taken = take(flow, memory, at..at + bytes)?;
        if taken == 0 {
            return flow.source_ended();
        }
        at += taken;
        flow.arrived(taken)?;
    }
    Ok(())
}

fn take(flow: &mut Flow<'_>, memory: &SharedMapping, target: Range<usize>) -> Result<usize, Halt> {
    let (source, offset) = (flow.source, flow.offset());
    if source.is_stream() && flow.patience.is_bounded() {
        flow.wait_for_source()?;
    }
    let taken = flow.call(End::Source, || match source.is_stream() {
        true => memory.read_next(source.fd, target.clone()),
        false => memory.read_from(source.fd, offset, target.clone()),
    })?;
    flow.taken += taken as u64;
    Ok(taken)
}
