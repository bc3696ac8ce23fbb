//! Aho-Corasick automaton. Each byte of the stream is one transition, however many texts there are.
//!
//! The `aho-corasick` crate does not report the length of a partial match at the end of the stream. Live logs need it to hold back as
//! little as possible.

use std::collections::VecDeque;

/// The longest suffix of the stream that is a prefix of some text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TrieState(u32);

pub(super) const START: TrieState = TrieState(0);

/// Node of the automaton. For children and siblings, the index 0 means that there is no such node.
#[derive(Debug, Clone, Default)]
struct Node {
    /// Byte that leads to this node.
    byte: u8,
    first_child: u32,
    next_sibling: u32,
    /// Node of the longest proper suffix that is a prefix of a text. 0 is the root: no such suffix.
    fallback: u32,
    /// Length of the path from the root.
    depth: u32,
    /// Length of the longest text that ends here. 0 means none.
    longest: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Trie {
    nodes: Vec<Node>,
    /// Child of the root for each byte. 0 means that no text starts with it.
    starts: Box<[u32; 256]>,
}

impl Trie {
    pub(super) fn new<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut trie = Self { nodes: vec![Node::default()], starts: Box::new([0; 256]) };
        for text in texts {
            trie.add(text);
        }
        trie.compute_fallbacks();
        trie
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Returns the number of leading bytes with which no text starts.
    pub(super) fn skippable(&self, bytes: &[u8]) -> usize {
        bytes.iter().position(|byte| self.root_child(*byte) != 0).unwrap_or(bytes.len())
    }

    /// Returns the state after `byte`. Takes amortized constant time.
    pub(super) fn next(&self, TrieState(mut at): TrieState, byte: u8) -> TrieState {
        loop {
            match self.child(at, byte) {
                Some(next) => return TrieState(next),
                None if at == 0 => return START,
                None => at = self.node(at).fallback,
            }
        }
    }

    /// Returns the length of the longest suffix that is a prefix of a text.
    pub(super) fn depth(&self, state: TrieState) -> usize {
        self.node(state.0).depth as usize
    }

    /// Returns the length of the longest text that ends at this state.
    pub(super) fn longest(&self, state: TrieState) -> Option<usize> {
        Some(self.node(state.0).longest as usize).filter(|length| *length > 0)
    }

    fn node(&self, index: u32) -> &Node {
        const ROOT: &Node = &Node { byte: 0, first_child: 0, next_sibling: 0, fallback: 0, depth: 0, longest: 0 };
        self.nodes.get(index as usize).unwrap_or(ROOT)
    }

    fn node_mut(&mut self, index: u32) -> Option<&mut Node> {
        self.nodes.get_mut(index as usize)
    }

    /// Returns the child of the root for this byte. 0 means that no text starts with the byte.
    fn root_child(&self, byte: u8) -> u32 {
        self.starts.get(usize::from(byte)).copied().unwrap_or_default()
    }

    fn child(&self, at: u32, byte: u8) -> Option<u32> {
        if at == 0 {
            return Some(self.root_child(byte)).filter(|child| *child != 0);
        }
        let mut child = self.node(at).first_child;
        while child != 0 {
            let node = self.node(child);
            if node.byte == byte {
                return Some(child);
            }
            child = node.next_sibling;
        }
        None
    }

    /// Texts are ignored once the automaton has 2^32 nodes.
    fn add(&mut self, text: &[u8]) {
        let mut at = 0;
        for (depth, byte) in (1..).zip(text) {
            at = match self.child(at, *byte) {
                Some(child) => child,
                None => {
                    let Ok(new) = u32::try_from(self.nodes.len()) else { return };
                    let next_sibling = self.node(at).first_child;
                    self.nodes.push(Node { byte: *byte, next_sibling, depth, ..Node::default() });
                    if let Some(parent) = self.node_mut(at) {
                        parent.first_child = new;
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

    /// Computes the fallbacks by depth, because deeper ones depend on the others.
    fn compute_fallbacks(&mut self) {
        let mut queue = VecDeque::from([0]);
        while let Some(at) = queue.pop_front() {
            let mut child = self.node(at).first_child;
            while child != 0 {
                let Node { byte, next_sibling, longest, .. } = *self.node(child);
                let fallback = if at == 0 { START } else { self.next(TrieState(self.node(at).fallback), byte) };
                let inherited = self.node(fallback.0).longest;
                if let Some(node) = self.node_mut(child) {
                    node.fallback = fallback.0;
                    node.longest = if longest > 0 { longest } else { inherited };
                }
                queue.push_back(child);
                child = next_sibling;
            }
        }
    }
}
