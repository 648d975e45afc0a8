//! Metadata of a GGUF file, borrowed from its bytes.

use super::cursor::{Cursor, Malformed};

/// One metadata value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(&'a str),
    Array(Array<'a>),
}

/// Values of one kind, checked when the file was read and decoded when they are asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Array<'a> {
    kind: Kind,
    len: usize,
    bytes: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

/// Arrays of arrays of …: more than anything needs, few enough for the stack.
const MAX_DEPTH: usize = 8;

impl Kind {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        const KINDS: [Kind; 13] = [
            Kind::U8,
            Kind::I8,
            Kind::U16,
            Kind::I16,
            Kind::U32,
            Kind::I32,
            Kind::F32,
            Kind::Bool,
            Kind::Text,
            Kind::Array,
            Kind::U64,
            Kind::I64,
            Kind::F64,
        ];
        let id = cursor.u32()?;
        let kind = KINDS.get(id as usize);
        kind.copied().ok_or_else(|| Malformed(format!("a value of unknown kind {id}")))
    }
}

impl<'a> Value<'a> {
    /// The next value, its kind before it.
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Self, Malformed> {
        let kind = Kind::read(cursor)?;
        Self::of(kind, cursor, 0)
    }

    fn of(kind: Kind, cursor: &mut Cursor<'a>, depth: usize) -> Result<Self, Malformed> {
        Ok(match kind {
            Kind::U8 => Self::Unsigned(u8::from_le_bytes(cursor.take()?).into()),
            Kind::U16 => Self::Unsigned(u16::from_le_bytes(cursor.take()?).into()),
            Kind::U32 => Self::Unsigned(cursor.u32()?.into()),
            Kind::U64 => Self::Unsigned(cursor.u64()?),
            Kind::I8 => Self::Signed(i8::from_le_bytes(cursor.take()?).into()),
            Kind::I16 => Self::Signed(i16::from_le_bytes(cursor.take()?).into()),
            Kind::I32 => Self::Signed(i32::from_le_bytes(cursor.take()?).into()),
            Kind::I64 => Self::Signed(i64::from_le_bytes(cursor.take()?)),
            Kind::F32 => Self::Float(f32::from_le_bytes(cursor.take()?).into()),
            Kind::F64 => Self::Float(f64::from_le_bytes(cursor.take()?)),
            Kind::Bool => match cursor.take::<1>()? {
                [0] => Self::Bool(false),
                [1] => Self::Bool(true),
                [other] => return Err(Malformed(format!("a truth value of {other}"))),
            },
            Kind::Text => Self::Text(cursor.text()?),
            Kind::Array => Self::Array(Array::read(cursor, depth + 1)?),
        })
    }
}

impl<'a> Array<'a> {
    fn read(cursor: &mut Cursor<'a>, depth: usize) -> Result<Self, Malformed> {
        if depth > MAX_DEPTH {
            return Err(Malformed(format!("arrays within arrays, more than {MAX_DEPTH} deep")));
        }
        let kind = Kind::read(cursor)?;
        // Every element takes a byte at least, so a length beyond the file ends the loop early.
        let len = cursor.count(1)?;
        let start = cursor.rest();
        for _ in 0..len {
            Value::of(kind, cursor, depth)?;
        }
        let bytes = &start[..start.len() - cursor.rest().len()];
        Ok(Self { kind, len, bytes })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All elements in order.
    pub(crate) fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (kind, mut cursor) = (self.kind, Cursor::new(self.bytes));
        // Reading the file has shown that there are exactly `len`.
        (0..self.len).map_while(move |_| Value::of(kind, &mut cursor, 0).ok())
    }
}
