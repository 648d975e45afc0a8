//! Cuts a byte stream into lines with bounded memory.

use memchr::memchr;

/// The longest line that is kept whole; the rest of a longer one is dropped.
const MOST_BYTES: usize = 1 << 20;

/// Carries the unfinished line from one chunk to the next.
#[derive(Default)]
pub struct Lines {
    carry: Vec<u8>,
    overlong: bool,
}

impl Lines {
    /// Hands on every line that `chunk` finishes.
    pub fn feed(&mut self, mut chunk: &[u8], line: &mut impl FnMut(&[u8])) {
        while let Some(end) = memchr(b'\n', chunk) {
            let (head, rest) = chunk.split_at(end);
            chunk = &rest[1..];
            if self.carry.is_empty() && !self.overlong {
                line(&head[..head.len().min(MOST_BYTES)]);
            } else {
                self.keep(head);
                line(&self.carry);
                self.carry.clear();
                self.overlong = false;
            }
        }
        self.keep(chunk);
    }

    /// Hands on the last line when the stream ends without a newline.
    pub fn finish(&mut self, line: &mut impl FnMut(&[u8])) {
        if !self.carry.is_empty() {
            line(&self.carry);
            self.carry.clear();
        }
        self.overlong = false;
    }

    fn keep(&mut self, part: &[u8]) {
        let room = MOST_BYTES - self.carry.len();
        self.overlong |= part.len() > room;
        self.carry.extend_from_slice(&part[..part.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_do_not_depend_on_the_chunks() {
        let text: Vec<u8> = b"one\ntwo\n\nfour\r\nlast".to_vec();
        for size in 1..8 {
            let mut lines = Lines::default();
            let mut got: Vec<Vec<u8>> = Vec::new();
            for chunk in text.chunks(size) {
                lines.feed(chunk, &mut |line| got.push(line.to_vec()));
            }
            lines.finish(&mut |line| got.push(line.to_vec()));
            assert_eq!(got, [&b"one"[..], b"two", b"", b"four\r", b"last"]);
        }
    }

    #[test]
    fn an_endless_line_is_cut() {
        let mut lines = Lines::default();
        let mut got = Vec::new();
        let part = vec![b'x'; MOST_BYTES / 2 + 1];
        for _ in 0..4 {
            lines.feed(&part, &mut |line| got.push(line.len()));
        }
        lines.feed(b"\nshort\n", &mut |line| got.push(line.len()));
        assert_eq!(got, [MOST_BYTES, 5]);
    }
}
