//! The methods: who provides memory, how it is filled, what is used again.

use std::fmt;
use std::str::FromStr;

use shorthaul::{FillMethod, FillPolicy, Lane};
use shorthaul_platform::store::Store;

/// One way of getting a payload from one process to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// `nt`: the writer uses streaming (non-temporal) stores.
    streams: bool,
}

/// How the payload travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The server fills a memory file of the client's.
    Fill {
        memory: Memory,
        fill: FillMethod,
        /// `s-reuse`: the server keeps its mapping.
        keeps_mapping: bool,
    },
    /// It follows the reply on the socket.
    Sidecar,
    /// The server makes a memory file for it, seals it, and sends it with the reply.
    Sealed,
    /// As the library thinks best.
    Auto,
    /// To the server, which reads it.
    Put(Put),
}

/// The memory file that the client offers for the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Made, sent and mapped for each call.
    Fresh,
    /// `c-reuse`: one buffer for all calls.
    Reused,
}

/// How a payload travels to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// Behind the request, on the socket.
    Inline,
    /// In a buffer that the server has mapped, and copies out of.
    Region,
    /// In a memory file that is made, sealed and sent for each call.
    Sealed,
    /// As the library thinks best.
    Auto,
}

impl Method {
    /// All that can be asked for, in the order of the table.
    pub(crate) const ALL: [Self; 18] = [
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
        other("sidecar", Kind::Sidecar, false),
        other("sidecar,nt", Kind::Sidecar, true),
        other("sealed", Kind::Sealed, false),
        other("auto", Kind::Auto, false),
        other("put(inline)", Kind::Put(Put::Inline), false),
        other("put(region)", Kind::Put(Put::Region), false),
        other("put(sealed)", Kind::Put(Put::Sealed), false),
        other("put(auto)", Kind::Put(Put::Auto), false),
    ];

    /// Its number between the two processes of the bench.
    pub(crate) fn number(&self) -> u8 {
        Self::ALL.iter().position(|method| method == self).map_or(u8::MAX, |index| index as u8)
    }

    pub(crate) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// How its bytes are stored.
    pub(crate) fn store(&self) -> Store {
        if self.streams { Store::streaming_or_ordinary() } else { Store::Ordinary }
    }

    /// What the server does for it.
    pub(crate) fn policy(&self) -> FillPolicy {
        let (method, keep_mapping) = match self.kind {
            Kind::Fill { fill, keeps_mapping, .. } => (fill, keeps_mapping),
            // As it is by default.
            _ => (FillMethod::Map, true),
        };
        FillPolicy { method, keep_mapping, store: self.store() }
    }

    /// The lane that its payloads must take; none where that is for the library to choose.
    pub(crate) fn lane(&self) -> Option<Lane> {
        match self.kind {
            Kind::Fill { fill: FillMethod::Map, .. } => Some(Lane::FillMap),
            Kind::Fill { fill: FillMethod::Write, .. } => Some(Lane::FillWrite),
            Kind::Sidecar => Some(Lane::Inline),
            Kind::Sealed | Kind::Put(Put::Sealed) => Some(Lane::Sealed),
            Kind::Put(Put::Inline) => Some(Lane::Inline),
            Kind::Put(Put::Region) => Some(Lane::CopyOut),
            Kind::Auto | Kind::Put(Put::Auto) => None,
        }
    }

    /// Whether the payload goes to the server.
    pub(crate) fn is_put(&self) -> bool {
        matches!(self.kind, Kind::Put(_))
    }

    /// Whether the client has a buffer for it that is used again.
    pub(crate) fn reuses_buffer(&self) -> bool {
        matches!(self.kind, Kind::Fill { memory: Memory::Reused, .. } | Kind::Put(Put::Region))
    }

    /// Whether the library chooses between others.
    pub(crate) fn is_automatic(&self) -> bool {
        matches!(self.kind, Kind::Auto | Kind::Put(Put::Auto))
    }

    /// Whether `other` is one that the library could have chosen. What `put(region)` sends lies in
    /// the buffer from the start, which spares a copy: it is no choice for what lies elsewhere.
    pub(crate) fn is_choice_between(&self, other: &Self) -> bool {
        let is_in_buffer = other.kind == Kind::Put(Put::Region);
        let is_same_way = self.is_put() == other.is_put();
        self.is_automatic() && !other.is_automatic() && is_same_way && !is_in_buffer
    }

    /// Whether there is a bare twin of it.
    pub(crate) fn has_twin(&self) -> bool {
        !self.is_automatic()
    }

    /// What a program does to get it.
    pub(crate) fn advice(&self) -> &'static str {
        match self.kind {
            Kind::Fill { memory: Memory::Reused, fill: FillMethod::Map, keeps_mapping: true } => {
                "make a buffer once with client.buffer(), pass it to each call with into(), and \
                 take it back with into_buffer()"
            }
            Kind::Fill { memory: Memory::Reused, fill: FillMethod::Map, keeps_mapping: false } => {
                "reuse a client.buffer(), and set FillPolicy::keep_mapping to false on the server"
            }
            Kind::Fill { memory: Memory::Reused, fill: FillMethod::Write, .. } => {
                "reuse a client.buffer(), and set FillPolicy::method to Write on the server"
            }
            Kind::Fill { memory: Memory::Fresh, .. } => {
                "let each call bring its own memory with into_fresh()"
            }
            Kind::Sidecar => "take the payload over the socket with inline()",
            Kind::Sealed => "take the payload in the server's sealed memory with sealed()",
            Kind::Auto => "leave the choice to the library with auto()",
            Kind::Put(Put::Inline) => "send bulk over the socket with payload_inline()",
            Kind::Put(Put::Region) => {
                "write bulk into a client.buffer() that is used again, and send it with \
                 payload_from()"
            }
            Kind::Put(Put::Sealed) => "send bulk as a SealedObject with payload_sealed()",
            Kind::Put(Put::Auto) => "send bulk with payload()",
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
    Method { name, kind: Kind::Fill { memory, fill, keeps_mapping }, streams }
}

const fn other(name: &'static str, kind: Kind, streams: bool) -> Method {
    Method { name, kind, streams }
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

/// What the names mean that the original didn't have.
pub(crate) const LEGEND_MORE: &str = "\
\x20 sealed:  server sends back a file descriptor of sealed memory that it made
  auto:    as the library thinks best
  put:     the other way: client sends the data, server reads it; inline over
           the socket, from a region that the client holds on to, or sealed
";

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
            assert_eq!(Method::of_number(number as u8), Some(method));
        }
        for method in Method::ALL {
            assert_eq!(method.name.parse(), Ok(method));
        }
        assert_eq!(Method::of_number(u8::MAX), None);
        assert!("fd".parse::<Method>().unwrap_err().contains("fd(s-mmap,c-reuse,s-reuse)"));
    }
}
