//! Types that are read and written as a whole.

use std::{fmt, marker::PhantomData};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Char, Circular, Error, Guid, Members, Reader, Text, Unmanaged, Writer};

/// A type that knows its bytes. What it reads may borrow from the message, for `'a`.
pub trait MemoryPack<'a>: Sized {
    /// Bytes that a value has at least: what counts of elements are held against.
    const LEAST: usize;

    /// Reads a value.
    ///
    /// # Errors
    /// [`Error::Null`] for a null: an `Option` takes it.
    fn read(reader: &mut Reader<'a>) -> Result<Self, Error>;

    /// Writes a value.
    fn write(&self, writer: &mut Writer<'_>) -> Result<(), Error>;

    /// What a member is where its object ends before it or leaves it out: 0, or null.
    ///
    /// # Errors
    /// [`Error::Null`] where that is no value of the type.
    fn absent() -> Result<Self, Error> {
        Err(Error::Null)
    }
}

/// A type of which .NET has a null, or a `T?`: an `Option` of it is that.
pub trait Nullable<'a>: MemoryPack<'a> {
    /// Bytes that a value or a null has at least.
    const LEAST_NULLABLE: usize;

    /// Reads a value or a null.
    fn read_nullable(reader: &mut Reader<'a>) -> Result<Option<Self>, Error>;

    /// Writes a value or a null.
    fn write_nullable(value: Option<&Self>, writer: &mut Writer<'_>) -> Result<(), Error>;
}

/// The members of an object that references lead to; the object is a [`Circular`] of it.
pub trait CircularMembers<'a>: Sized {
    /// How many there are, those that the type has no more among them.
    const COUNT: u8;

    /// Reads the members.
    fn read_members(members: &mut Members<'_, 'a>) -> Result<Self, Error>;

    /// Writes the member at a place from 0 on, or nothing to leave it out.
    fn write_member(&self, at: u8, writer: &mut Writer<'_>) -> Result<(), Error>;
}

impl<'a, T: Nullable<'a>> MemoryPack<'a> for Option<T> {
    const LEAST: usize = T::LEAST_NULLABLE;

    fn read(reader: &mut Reader<'a>) -> Result<Self, Error> {
        T::read_nullable(reader)
    }

    fn write(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
        T::write_nullable(self.as_ref(), writer)
    }

    fn absent() -> Result<Self, Error> {
        Ok(None)
    }
}

macro_rules! unmanaged {
    ($($of:ty),*) => { $(
        impl<'a> MemoryPack<'a> for $of {
            const LEAST: usize = Self::SIZE;

            #[inline]
            fn read(reader: &mut Reader<'a>) -> Result<Self, Error> {
                reader.value()
            }

            #[inline]
            fn write(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
                writer.value(*self)
            }

            fn absent() -> Result<Self, Error> {
                Ok(Self::default())
            }
        }

        impl<'a> Nullable<'a> for $of {
            const LEAST_NULLABLE: usize = <Option<Self> as Unmanaged>::SIZE;

            #[inline]
            fn read_nullable(reader: &mut Reader<'a>) -> Result<Option<Self>, Error> {
                reader.nullable()
            }

            #[inline]
            fn write_nullable(value: Option<&Self>, writer: &mut Writer<'_>) -> Result<(), Error> {
                writer.nullable(value.copied())
            }
        }
    )* };
}

unmanaged!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, bool, Char, Guid);

/// Types that are null as a whole: `read` and `write` are their own, a null is `null`.
macro_rules! references {
    ($(($($generics:tt)*) $of:ty, $least:literal, $read:expr, $write:expr, $null:expr;)*) => { $(
        impl<'a, $($generics)*> MemoryPack<'a> for $of {
            const LEAST: usize = $least;

            fn read(reader: &mut Reader<'a>) -> Result<Self, Error> {
                Self::read_nullable(reader)?.ok_or(Error::Null)
            }

            fn write(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
                $write(self, writer)
            }
        }

        impl<'a, $($generics)*> Nullable<'a> for $of {
            const LEAST_NULLABLE: usize = $least;

            fn read_nullable(reader: &mut Reader<'a>) -> Result<Option<Self>, Error> {
                $read(reader)
            }

            fn write_nullable(value: Option<&Self>, writer: &mut Writer<'_>) -> Result<(), Error> {
                match value {
                    None => $null(writer),
                    Some(value) => value.write(writer),
                }
            }
        }
    )* };
}

references! {
    () Text<'a>, 4, Reader::string, Text::put, |writer: &mut Writer<'_>| writer.utf8(None);
    () String, 4, owned, |text: &Self, writer: &mut Writer<'_>| writer.utf8(Some(text)), |writer: &mut Writer<'_>| writer.utf8(None);
    (T: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned) &'a [T], 4, Reader::array,
        |elements: &Self, writer: &mut Writer<'_>| writer.array(Some(*elements)), no_list;
    (T: MemoryPack<'a>) Vec<T>, 4, elements, all, no_list;
    (T: MemoryPack<'a>) List<'a, T>, 4, List::take, List::put, no_list;
    (T: CircularMembers<'a>) Circular<T>, 1, circular, Circular::put, |writer: &mut Writer<'_>| writer.null();
}

fn no_list(writer: &mut Writer<'_>) -> Result<(), Error> {
    writer.list(None)
}

impl Text<'_> {
    fn put(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
        match self {
            Self::Utf8(text) => writer.utf8(Some(text)),
            Self::Utf16(units) => writer.utf16(Some(units)),
        }
    }
}

/// The characters of a string in either form.
fn owned(reader: &mut Reader<'_>) -> Result<Option<String>, Error> {
    let text = reader.string()?;
    text.map(|text| text.chars().collect::<Result<_, _>>().map_err(|_| Error::Text)).transpose()
}

/// Elements one by one: no more room is taken than for what was read, twice at most.
fn elements<'a, T: MemoryPack<'a>>(reader: &mut Reader<'a>) -> Result<Option<Vec<T>>, Error> {
    let mut elements = Vec::new();
    let count = reader.list(T::LEAST, |reader| {
        elements.push(T::read(reader)?);
        Ok(())
    })?;
    Ok(count.map(|_| elements))
}

fn all<'a, T: MemoryPack<'a>>(elements: &[T], writer: &mut Writer<'_>) -> Result<(), Error> {
    writer.list(Some(elements.len()))?;
    elements.iter().try_for_each(|element| element.write(writer))
}

fn circular<'a, T: CircularMembers<'a>>(reader: &mut Reader<'a>) -> Result<Option<Circular<T>>, Error> {
    reader.circular(|_, members| T::read_members(members))
}

impl<'a, T: CircularMembers<'a>> Circular<T> {
    fn put(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
        match self {
            Self::Object(id, object) => writer.circular(T::COUNT, *id, |writer, at| object.write_member(at, writer)),
            Self::Reference(id) => writer.reference(*id),
        }
    }
}

impl<'a, T: MemoryPack<'a>> MemoryPack<'a> for Box<T> {
    const LEAST: usize = T::LEAST;

    fn read(reader: &mut Reader<'a>) -> Result<Self, Error> {
        T::read(reader).map(Self::new)
    }

    fn write(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
        T::write(self, writer)
    }
}

impl<'a, T: Nullable<'a>> Nullable<'a> for Box<T> {
    const LEAST_NULLABLE: usize = T::LEAST_NULLABLE;

    fn read_nullable(reader: &mut Reader<'a>) -> Result<Option<Self>, Error> {
        Ok(T::read_nullable(reader)?.map(Self::new))
    }

    fn write_nullable(value: Option<&Self>, writer: &mut Writer<'_>) -> Result<(), Error> {
        T::write_nullable(value.map(|value| &**value), writer)
    }
}

macro_rules! tuples {
    ($($($of:ident)*;)*) => { $(
        impl<'a, $($of: MemoryPack<'a>),*> MemoryPack<'a> for ($($of,)*) {
            const LEAST: usize = 0 $(+ $of::LEAST)*;

            fn read(reader: &mut Reader<'a>) -> Result<Self, Error> {
                Ok(($($of::read(reader)?,)*))
            }

            fn write(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
                #[allow(non_snake_case)]
                let ($($of,)*) = self;
                $($of.write(writer)?;)*
                Ok(())
            }

            fn absent() -> Result<Self, Error> {
                Ok(($($of::absent()?,)*))
            }
        }
    )* };
}

tuples! { A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; }

/// A collection that stays in the message. Its elements were read once, and are read again each time they are asked for.
pub struct List<'a, T> {
    /// At its first element.
    reader: Reader<'a>,
    len: usize,
    of: PhantomData<fn() -> T>,
}

impl<'a, T: MemoryPack<'a>> List<'a, T> {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order.
    pub fn elements(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let mut reader = self.reader.clone();
        // None fails: it was read as a `T` before.
        (0..self.len).map_while(move |_| T::read(&mut reader).ok())
    }

    fn take(reader: &mut Reader<'a>) -> Result<Option<Self>, Error> {
        let mut first = None;
        let len = reader.list(T::LEAST, |reader| {
            first.get_or_insert_with(|| reader.clone());
            T::read(reader).map(drop)
        })?;
        Ok(len.map(|len| Self { reader: first.unwrap_or_else(|| Reader::new(&[])), len, of: PhantomData }))
    }

    fn put(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
        writer.list(Some(self.len))?;
        self.elements().try_for_each(|element| element.write(writer))
    }
}

impl<T> Clone for List<'_, T> {
    fn clone(&self) -> Self {
        Self { reader: self.reader.clone(), ..*self }
    }
}

impl<'a, T: MemoryPack<'a> + PartialEq> PartialEq for List<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.elements().eq(other.elements())
    }
}

impl<'a, T: MemoryPack<'a> + fmt::Debug> fmt::Debug for List<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.elements()).finish()
    }
}
