//! The threads that run handlers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::call::InboundCall;
use super::queue::{Popped, ServiceQueue};
use super::shared::Shared;
use crate::error::{Code, Status};

/// Carries out calls until the queue is closed and empty.
pub(super) fn work(shared: &Shared, queue: &ServiceQueue<InboundCall>) {
    while let Some(Popped { mut call, charged_bytes }) = queue.pop() {
        call.charge(charged_bytes);
        carry_out(&mut call, shared, Instant::now());
    }
}

/// Runs the handler of one call, whatever it does: a call past its deadline is not begun, a panic
/// is that call's failure alone.
pub(super) fn carry_out(call: &mut InboundCall, shared: &Shared, now: Instant) {
    if call.deadline().is_some_and(|deadline| now >= deadline) {
        let status = Status::new(Code::DeadlineExceeded, "the deadline passed before it began");
        call.fail(status).ok();
        return;
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| shared.service.call(call)));
    let answer = match outcome {
        Ok(Ok(())) => return call.leave_unanswered(),
        Ok(Err(status)) => status,
        Err(_) => Status::new(Code::Internal, "the handler panicked; see the server's log"),
    };
    // Refused if the handler had answered already: that answer stands.
    call.fail(answer).ok();
}
