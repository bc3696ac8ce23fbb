//! A set of bytes with fast look-up.

#[derive(Debug, Clone)]
pub(super) struct ByteSet(Box<[bool; 256]>);

impl ByteSet {
    pub(super) fn contains(&self, byte: u8) -> bool {
        self.0.get(usize::from(byte)) == Some(&true)
    }
}

impl FromIterator<u8> for ByteSet {
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> Self {
        let mut set = Box::new([false; 256]);
        for byte in bytes {
            if let Some(member) = set.get_mut(usize::from(byte)) {
                *member = true;
            }
        }
        Self(set)
    }
}
