//! Two pipes without anything around them.

use std::fs::File;
use std::os::fd::AsFd;

use anyhow::Result;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::socket::{Kept, Stream, answer};
use super::{Caller, Habits, Peer, descriptors};
use crate::meeting::Meeting;

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    vec![Box::new(Pipe { is_tuned: false }), Box::new(Pipe { is_tuned: true })]
}

#[derive(Clone, Copy, Debug)]
struct Pipe {
    is_tuned: bool,
}

impl Peer for Pipe {
    fn name(&self) -> &'static str {
        if self.is_tuned { "pipe tuned" } else { "pipe" }
    }

    fn about(&self) -> &'static str {
        if self.is_tuned {
            "two pipes of 1 MiB (F_SETPIPE_SZ), page-aligned buffers kept on both sides"
        } else {
            "two pipes of 64 KiB, a Vec kept on both sides"
        }
    }

    fn habits(&self) -> Habits {
        Habits { pipelines: true, ..Habits::default() }
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        let (requests, requests_in) = pipe_with(PipeFlags::CLOEXEC)?;
        let (answers_out, answers) = pipe_with(PipeFlags::CLOEXEC)?;
        if self.is_tuned {
            fcntl_setpipe_size(&answers, PIPE_BYTES)?;
        }
        meeting.ready()?;
        descriptors::send(&meeting.link, &[0], &[requests_in.as_fd(), answers_out.as_fd()])?;
        drop((requests_in, answers_out));
        let kept = Kept::new(meeting.bytes, self.is_tuned)?;
        answer(File::from(requests), File::from(answers), kept)
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        let [requests, answers] = descriptors::receive_exactly(&meeting.link)?;
        let kept = Kept::new(meeting.bytes, self.is_tuned)?;
        Ok(Box::new(Stream { requests: File::from(requests), answers: File::from(answers), kept }))
    }
}

/// What anybody may have, unless the administrator says otherwise.
const PIPE_BYTES: usize = 1 << 20;
