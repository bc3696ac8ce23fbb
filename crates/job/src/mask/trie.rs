//! All texts to find as one automaton (Aho and Corasick): each byte of a stream is one move, however many the texts are
//! and however much they have in common.
//!
//! The well-known crate for it tells what it found, but not how much of a text it may be in the middle of; a stream that
//! people watch needs that, so that nothing is held back without cause.

use std::collections::VecDeque;

use super::escape::is_escape;

/// What has been seen: the longest end of the stream that some text starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u32);

/// No text has begun.
pub(super) const NOWHERE: Place = Place(0);

#[derive(Debug, Clone, Default)]
struct Node {
    /// The byte that leads here.
    byte: u8,
    /// The first node behind this one; 0 is none.
    first: u32,
    /// The next node behind the one before this; 0 is none.
    sibling: u32,
    /// Where to go on with a byte that leads nowhere from here: the longest proper end of this one's text.
    fallback: u32,
    /// Bytes from the root.
    depth: u32,
    /// Bytes of the longest text that ends here; 0 is none.
    longest: u32,
}

/// The automaton.
#[derive(Debug, Clone)]
pub(super) struct Trie {
    nodes: Vec<Node>,
    /// The node behind the root for each byte; 0 where no text starts with it. Most bytes of a log are looked up here.
    starts: Box<[u32; 256]>,
}

impl Trie {
    pub(super) fn new<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut trie = Self { nodes: vec![Node::default()], starts: Box::new([0; 256]) };
        for text in texts {
            trie.add(text);
        }
        trie.link();
        trie
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Bytes at the start of `bytes` with which no text starts, as far as the byte behind each tells.
    pub(super) fn idle(&self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(skip) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| self.start(*byte) != 0)) {
            at += skip;
            let start = bytes.get(at).map_or(0, |byte| self.start(*byte));
            // An escape sequence may stand between two bytes of a text.
            let ends_here = |next: &u8| !is_escape(*next) && self.child(start, *next).is_none();
            if self.node(start).longest > 0 || !bytes.get(at + 1).is_some_and(ends_here) {
                return at;
            }
            at += 1;
        }
        bytes.len()
    }

    /// The move with one more byte. The whole stream takes no more steps back than it takes forward.
    pub(super) fn next(&self, Place(mut at): Place, byte: u8) -> Place {
        loop {
            match self.child(at, byte) {
                Some(next) => return Place(next),
                None if at == 0 => return NOWHERE,
                None => at = self.node(at).fallback,
            }
        }
    }

    /// Bytes up to here that a text may start with.
    pub(super) fn depth(&self, place: Place) -> usize {
        self.node(place.0).depth as usize
    }

    /// Bytes up to here that are a text: the longest one.
    pub(super) fn longest(&self, place: Place) -> Option<usize> {
        Some(self.node(place.0).longest as usize).filter(|length| *length > 0)
    }

    fn node(&self, index: u32) -> &Node {
        const ROOT: &Node = &Node { byte: 0, first: 0, sibling: 0, fallback: 0, depth: 0, longest: 0 };
        self.nodes.get(index as usize).unwrap_or(ROOT)
    }

    fn node_mut(&mut self, index: u32) -> Option<&mut Node> {
        self.nodes.get_mut(index as usize)
    }

    /// The node behind the root for a byte; 0 is none.
    fn start(&self, byte: u8) -> u32 {
        self.starts.get(usize::from(byte)).copied().unwrap_or_default()
    }

    fn child(&self, at: u32, byte: u8) -> Option<u32> {
        if at == 0 {
            return Some(self.start(byte)).filter(|child| *child != 0);
        }
        let mut child = self.node(at).first;
        while child != 0 {
            let node = self.node(child);
            if node.byte == byte {
                return Some(child);
            }
            child = node.sibling;
        }
        None
    }

    /// Adds a text. Texts beyond 4 GiB in all are left out: there is no memory for them either.
    fn add(&mut self, text: &[u8]) {
        let mut at = 0;
        for (depth, byte) in (1..).zip(text) {
            at = match self.child(at, *byte) {
                Some(child) => child,
                None => {
                    let Ok(new) = u32::try_from(self.nodes.len()) else { return };
                    let sibling = self.node(at).first;
                    self.nodes.push(Node { byte: *byte, sibling, depth, ..Node::default() });
                    if let Some(parent) = self.node_mut(at) {
                        parent.first = new;
                    }
                    if at == 0
                        && let Some(start) = self.starts.get_mut(usize::from(*byte))
                    {
                        *start = new;
                    }
                    new
                }
            };
        }
        let length = self.node(at).depth;
        if let Some(node) = self.node_mut(at) {
            node.longest = length;
        }
    }

    /// Fills in where to go on, shorter texts first.
    fn link(&mut self) {
        let mut waiting = VecDeque::from([0]);
        while let Some(at) = waiting.pop_front() {
            let mut child = self.node(at).first;
            while child != 0 {
                let Node { byte, sibling, longest, .. } = *self.node(child);
                let fallback = if at == 0 { NOWHERE } else { self.next(Place(self.node(at).fallback), byte) };
                let inherited = self.node(fallback.0).longest;
                if let Some(node) = self.node_mut(child) {
                    node.fallback = fallback.0;
                    node.longest = if longest > 0 { longest } else { inherited };
                }
                waiting.push_back(child);
                child = sibling;
            }
        }
    }
}
