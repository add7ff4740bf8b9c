//! The twelve methods: who provides memory, how it is filled, what is used again.

use std::fmt;
use std::str::FromStr;

use shorthaul::{FillMethod, FillPolicy, Lane};
use shorthaul_platform::store::Store;

/// One way of getting a payload from a server to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    pub(crate) memory: Memory,
    fill: FillMethod,
    /// `s-reuse`: the server keeps its mapping.
    keeps_mapping: bool,
    /// `nt`: the server uses streaming (non-temporal) stores.
    streams: bool,
}

/// The memory that the client offers for the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// A memory file made, sent and mapped for each call.
    Fresh,
    /// `c-reuse`: one buffer for all calls.
    Reused,
    /// None: the payload comes over the socket.
    Socket,
}

impl Method {
    /// All of them, in the order of the table.
    pub(crate) const ALL: [Self; 12] = [
        fd("fd(s-write)", Memory::Fresh, FillMethod::Write, false, false),
        fd("fd(s-mmap)", Memory::Fresh, FillMethod::Map, false, false),
        fd("fd(s-mmap,nt)", Memory::Fresh, FillMethod::Map, false, true),
        fd("fd(s-mmap,s-reuse)", Memory::Fresh, FillMethod::Map, true, false),
        fd("fd(s-mmap,s-reuse,nt)", Memory::Fresh, FillMethod::Map, true, true),
        fd("fd(s-write,c-reuse)", Memory::Reused, FillMethod::Write, false, false),
        fd("fd(s-mmap,c-reuse)", Memory::Reused, FillMethod::Map, false, false),
        fd("fd(s-mmap,c-reuse,nt)", Memory::Reused, FillMethod::Map, false, true),
        fd("fd(s-mmap,c-reuse,s-reuse)", Memory::Reused, FillMethod::Map, true, false),
        fd("fd(s-mmap,c-reuse,s-reuse,nt)", Memory::Reused, FillMethod::Map, true, true),
        fd("sidecar", Memory::Socket, FillMethod::Map, false, false),
        fd("sidecar,nt", Memory::Socket, FillMethod::Map, false, true),
    ];

    /// Its number between the two processes of the bench.
    pub(crate) fn number(&self) -> u8 {
        Self::ALL.iter().position(|method| method == self).map_or(u8::MAX, |index| index as u8)
    }

    /// What the server does for it.
    pub(crate) fn policy(&self) -> FillPolicy {
        let store = if self.streams { Store::streaming_or_ordinary() } else { Store::Ordinary };
        FillPolicy { method: self.fill, keep_mapping: self.keeps_mapping, store }
    }

    /// The lane that its payloads must take.
    pub(crate) fn lane(&self) -> Lane {
        match (self.memory, self.fill) {
            (Memory::Socket, _) => Lane::Inline,
            (_, FillMethod::Map) => Lane::FillMap,
            (_, FillMethod::Write) => Lane::FillWrite,
        }
    }

    /// What a program does to get it.
    pub(crate) fn advice(&self) -> &'static str {
        match (self.memory, self.fill, self.keeps_mapping) {
            (Memory::Reused, FillMethod::Map, true) => {
                "make a buffer once with client.buffer(), pass it to each call with into(), and \
                 take it back with into_buffer()"
            }
            (Memory::Reused, FillMethod::Map, false) => {
                "reuse a client.buffer(), and set FillPolicy::keep_mapping to false on the server"
            }
            (Memory::Reused, FillMethod::Write, _) => {
                "reuse a client.buffer(), and set FillPolicy::method to Write on the server"
            }
            (Memory::Fresh, ..) => "let each call bring its own memory with into_fresh()",
            (Memory::Socket, ..) => "take the payload over the socket with inline()",
        }
    }
}

const fn fd(
    name: &'static str,
    memory: Memory,
    fill: FillMethod,
    keeps_mapping: bool,
    streams: bool,
) -> Method {
    Method { name, memory, fill, keeps_mapping, streams }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|method| method.name == name);
        known.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|method| method.name).collect();
            format!("there is no method {name}; there are: {}", names.join(" "))
        })
    }
}

/// A list of methods, as it is typed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Methods(pub(crate) Vec<Method>);

/// Reads a list with commas or spaces between the names. Names have commas too: inside brackets,
/// and `sidecar,nt`.
pub(crate) fn parse_methods(text: &str) -> Result<Methods, String> {
    let mut names: Vec<String> = Vec::new();
    let mut depth = 0;
    let mut begins = true;
    for letter in text.chars() {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        if depth == 0 && (letter == ',' || letter == ' ') {
            begins = true;
        } else if std::mem::take(&mut begins) {
            names.push(letter.to_string());
        } else if let Some(name) = names.last_mut() {
            name.push(letter);
        }
    }
    let mut methods: Vec<Method> = Vec::new();
    for name in names {
        match (name.as_str(), methods.last_mut()) {
            ("nt", Some(last)) if last.name == "sidecar" => *last = "sidecar,nt".parse()?,
            _ => methods.push(name.parse()?),
        }
    }
    if methods.is_empty() {
        return Err("name a method at least".into());
    }
    Ok(Methods(methods))
}

/// What the parts of the names mean; in the words of the original.
pub(crate) const LEGEND: &str = "\
Legend
===================
Methods:
  fd:      client sends a file descriptor for the server to fill
  s-write: server writes data the passed fd using write() syscall
  s-mmap:  server mmaps() the passed fd and writes using memset()
  s-reuse: server holds on to the mmapped region across calls
  c-reuse: client holds on to the mmapped region across calls
  sidecar: server sends back data over unix socket
  nt:      server uses nontemporal store instructions to write

NOTE: s-reuse without c-reuse isn't very effective since the server
will detect that it cant actually reuse the mapped buffer, since the
client provided a new one.
Columns designate which core each thread is bound to:
  client: the client 'user' thread
  c-rx:   the client reactor thread
  s-rx:   the server reactor thread
  worker: the server RPC worker thread

Core notation:
  SaCbTc: socket a core b thread c
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_in_spite_of_their_commas() {
        let all: Vec<_> = Method::ALL.iter().map(|method| method.name).collect();
        for separator in [",", " ", ", "] {
            let methods = parse_methods(&all.join(separator)).unwrap().0;
            assert_eq!(methods, Method::ALL);
        }
        for wrong in ["", ",", "nt", "fd(s-write", "sidecar,sidecar,x"] {
            assert!(parse_methods(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_and_numbers_are_read_back() {
        for (number, method) in Method::ALL.into_iter().enumerate() {
            assert_eq!(method.number(), number as u8);
            assert_eq!(method.name.parse(), Ok(method));
        }
        assert!("fd".parse::<Method>().unwrap_err().contains("fd(s-mmap,c-reuse,s-reuse)"));
    }
}
