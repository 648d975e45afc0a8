//! Reading from the front of a slice, never beyond its end.

/// What is wrong with the bytes; the caller knows where it was reading.
#[derive(Debug)]
pub(super) struct Malformed(pub(super) String);

/// The bytes that are still to be read.
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn slice(&mut self, n: u64) -> Result<&'a [u8], Malformed> {
        let has = self.rest.len();
        let cut = usize::try_from(n).ok().and_then(|n| self.rest.split_at_checked(n));
        let (taken, rest) =
            cut.ok_or_else(|| Malformed(format!("{n} bytes more, but the file has {has}")))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.slice(N as u64)?);
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    /// A number of things that take `min_bytes` each at least: no more than the file has room for,
    /// so that a caller may allocate for them.
    pub(super) fn count(&mut self, min_bytes: usize) -> Result<usize, Malformed> {
        let n = self.u64()?;
        let room = self.rest.len() / min_bytes;
        match usize::try_from(n) {
            Ok(n) if n <= room => Ok(n),
            _ => Err(Malformed(format!("{n} entries, but the file has room for {room}"))),
        }
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        let n = self.u64()?;
        let bytes = self.slice(n)?;
        std::str::from_utf8(bytes).map_err(|e| Malformed(format!("text that is not UTF-8: {e}")))
    }
}
