//! What a row measures, in one line: what happens to the bytes between this source and this sink,
//! in Linux 6.5 and newer.

use super::sink::{Receive, Sink};

/// What is measured by relaying a file by `method`.
pub(super) fn meaning(method: &str, sink: Sink, receive: Option<Receive>) -> String {
    let sent = sent(method, sink);
    match receive {
        Some(receive) => format!("{sent}; {}", received(receive)),
        None => sent.to_owned(),
    }
}

/// The same where the library chose the method.
pub(super) fn chosen(used: &str, sink: Sink, receive: Option<Receive>) -> String {
    format!("{used}: {}", meaning(used, sink, receive))
}

fn sent(method: &str, sink: Sink) -> &'static str {
    match (method, sink) {
        ("rw", Sink::Null) => "one copy: page cache to buffer; /dev/null takes no look at it",
        ("rw", Sink::Tcp | Sink::Unix) => "two copies: page cache to buffer, buffer to socket",
        ("rw", Sink::Pipe) => "two copies: page cache to buffer, buffer to pages of the pipe",
        ("rw", Sink::File) => "two copies: page cache to buffer, buffer to page cache",
        ("mmap", Sink::Null) => "system calls alone: /dev/null never looks at the bytes",
        ("mmap", Sink::Tcp | Sink::Unix) => "one copy, and page faults: mapped pages to socket",
        ("mmap", Sink::Pipe) => "one copy, and page faults: mapped pages to pages of the pipe",
        ("mmap", Sink::File) => "one copy, and page faults: mapped pages to page cache",
        ("splice", Sink::Null) => "looks up the pages and puts them on a pipe; no byte is touched",
        ("splice", Sink::Tcp | Sink::Unix) => {
            "pages by reference, over a pipe into the socket; no copy"
        }
        ("splice", Sink::Pipe) => "pages by reference, onto the pipe; no copy",
        ("splice", Sink::File) => "one copy, in the kernel: page cache to page cache, over a pipe",
        ("sendfile", Sink::Null) => {
            "looks up the pages and puts them on a pipe of the kernel's; no byte is touched"
        }
        ("sendfile", Sink::Tcp | Sink::Unix) => "pages by reference, into the socket; no copy",
        ("sendfile", Sink::Pipe) => "pages by reference, onto the pipe; no copy",
        ("sendfile", Sink::File) => "one copy, in the kernel: page cache to page cache",
        ("copy_file_range", Sink::File) => {
            "one copy, in the kernel; none where the file system shares blocks (reflink)"
        }
        ("copy_file_range", _) => "goes from file to file alone",
        _ => "what the library chooses for these ends",
    }
}

fn received(receive: Receive) -> &'static str {
    match receive {
        Receive::Trunc => "the receiver drops them uncopied",
        Receive::Read => "the receiver copies them out",
        Receive::Splice => "the receiver moves them on to /dev/null uncopied",
    }
}

#[cfg(test)]
mod tests {
    use shorthaul::relay::Method;

    use super::*;

    const SINKS: [Sink; 5] = [Sink::Null, Sink::Tcp, Sink::Unix, Sink::Pipe, Sink::File];

    #[test]
    fn the_words_of_the_mail_are_kept() {
        let null = |method| meaning(method, Sink::Null, None);
        assert!(null("splice").starts_with("looks up the pages and puts them on a pipe"));
        assert!(null("mmap").starts_with("system calls alone"));
        assert!(null("rw").starts_with("one copy"));
    }

    #[test]
    fn copies_are_counted() {
        for (method, counts) in [
            ("rw", ["one copy", "two copies", "two copies", "two copies", "two copies"]),
            ("mmap", ["system calls", "one copy", "one copy", "one copy", "one copy"]),
            ("splice", ["no byte", "no copy", "no copy", "no copy", "one copy"]),
            ("sendfile", ["no byte", "no copy", "no copy", "no copy", "one copy"]),
        ] {
            for (sink, expected) in SINKS.into_iter().zip(counts) {
                let said = meaning(method, sink, None);
                assert!(said.contains(expected), "{method} to {sink:?}: {said}");
            }
        }
        let said = meaning("copy_file_range", Sink::File, None);
        assert!(said.contains("one copy") && said.contains("reflink"), "{said}");
    }

    #[test]
    fn receivers_are_told_of() {
        let said = meaning("splice", Sink::Tcp, Some(Receive::Trunc));
        assert_eq!(
            said,
            "pages by reference, over a pipe into the socket; no copy; the receiver drops them \
             uncopied"
        );
        assert!(meaning("rw", Sink::Unix, Some(Receive::Read)).ends_with("copies them out"));
        assert!(chosen("mmap", Sink::Null, None).starts_with("mmap: system calls"));
    }

    #[test]
    fn each_is_one_line_for_every_pair() {
        for sink in SINKS {
            for method in Method::ALL {
                for receive in [None, sink.has_receiver().then_some(Receive::Splice)] {
                    let said = meaning(method.name(), sink, receive);
                    assert!(!said.contains('\n') && said.chars().count() < 120, "{said}");
                }
            }
        }
    }
}
