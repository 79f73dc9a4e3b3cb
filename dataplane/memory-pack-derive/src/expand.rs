//! The implementations.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::{GenericParam, Ident, Lifetime, TypeParam, ext::IdentExt as _, parse_quote};

use crate::parse::{Kind, Member, Parsed, Shape};

/// Where the traits are.
fn path() -> TokenStream {
    quote!(::berth_wire::memory_pack)
}

pub(crate) fn expand(parsed: &Parsed<'_>) -> TokenStream {
    match &parsed.shape {
        Shape::Integer { repr, variants } => integer(parsed, repr, variants),
        Shape::Union(variants) => union(parsed, variants),
        Shape::Struct { kind: Kind::Unmanaged, members } => unmanaged(parsed, members),
        Shape::Struct { kind: Kind::Message, members } => {
            let (object, message) = (object(parsed, members), message(parsed, members));
            quote!(#object #message)
        }
        Shape::Struct { kind: Kind::Object, members } => object(parsed, members),
        Shape::Struct { kind: Kind::Tolerant, members } => tolerant(parsed, members),
        Shape::Struct { kind: Kind::Circular, members } => circular(parsed, members),
    }
}

/// An implementation of a trait that has the lifetime of what is read.
fn implement(parsed: &Parsed<'_>, of: &str, body: impl FnOnce(&Lifetime) -> TokenStream) -> TokenStream {
    let (path, name, of) = (path(), parsed.name, Ident::new(of, Span::call_site()));
    let mut generics = parsed.generics.clone();
    let own = generics.lifetimes().next().map(|param| param.lifetime.clone());
    let message = own.clone().unwrap_or_else(|| Lifetime::new("'memory_pack", Span::call_site()));
    if own.is_none() {
        generics.params.insert(0, GenericParam::Lifetime(parse_quote!(#message)));
    }
    for TypeParam { bounds, .. } in generics.type_params_mut() {
        bounds.push(parse_quote!(#path::MemoryPack<#message>));
    }
    let ((parameters, _, bounds), (_, arguments, _)) = (generics.split_for_impl(), parsed.generics.split_for_impl());
    let body = body(&message);
    quote! {
        #[automatically_derived]
        #[allow(clippy::all, clippy::pedantic)]
        impl #parameters #path::#of<#message> for #name #arguments #bounds {
            #body
        }
    }
}

/// What is null in one byte, by how it is read and how it is written.
fn nullable(
    parsed: &Parsed<'_>,
    read: impl FnOnce(&TokenStream) -> TokenStream,
    write: impl FnOnce(&TokenStream) -> TokenStream,
) -> TokenStream {
    let path = path();
    let (read, write) = (read(&path), write(&path));
    let whole = implement(parsed, "MemoryPack", |message| {
        quote! {
            const LEAST: usize = 1;

            fn read(reader: &mut #path::Reader<#message>) -> Result<Self, #path::Error> {
                <Self as #path::Nullable<#message>>::read_nullable(reader)?.ok_or(#path::Error::Null)
            }

            fn write(&self, writer: &mut #path::Writer<'_>) -> Result<(), #path::Error> {
                #write
            }
        }
    });
    let nullable = implement(parsed, "Nullable", |message| {
        quote! {
            const LEAST_NULLABLE: usize = 1;

            fn read_nullable(reader: &mut #path::Reader<#message>) -> Result<Option<Self>, #path::Error> {
                #read
            }

            fn write_nullable(value: Option<&Self>, writer: &mut #path::Writer<'_>) -> Result<(), #path::Error> {
                match value {
                    None => writer.null(),
                    Some(value) => #path::MemoryPack::write(value, writer),
                }
            }
        }
    });
    quote!(#whole #nullable)
}

fn object(parsed: &Parsed<'_>, members: &[Member<'_>]) -> TokenStream {
    let count = members.len() as u8;
    let names: Vec<_> = members.iter().map(|member| member.name).collect();
    nullable(
        parsed,
        |_| quote!(reader.object(#count, |_members| Ok(Self { #(#names: _members.member()?,)* }))),
        |path| {
            quote! {
                writer.object(#count)?;
                #(#path::MemoryPack::write(&self.#names, writer)?;)*
                Ok(())
            }
        },
    )
}

/// Reading the members of a tolerant or circular object, and writing the one that `_at` says.
fn in_order(members: &[Member<'_>]) -> (u8, TokenStream, TokenStream) {
    let (path, mut next) = (path(), 0);
    let fields = members.iter().map(|member| {
        let (name, gap) = (member.name, member.order - next);
        next = member.order + 1;
        quote!(#name: { _members.pass_over(#gap)?; _members.member()? },)
    });
    let read = quote!(Ok(Self { #(#fields)* }));
    let arms = members
        .iter()
        .map(|Member { name, order, .. }| quote!(#order => #path::MemoryPack::write(&self.#name, _writer),));
    // A member that is gone writes nothing, and so is left out.
    let write = quote!(match _at { #(#arms)* _ => Ok(()) });
    (members.last().map_or(0, |last| last.order + 1), read, write)
}

fn tolerant(parsed: &Parsed<'_>, members: &[Member<'_>]) -> TokenStream {
    let (count, read, write) = in_order(members);
    nullable(
        parsed,
        |_| quote!(reader.tolerant(|_members| #read)),
        |_| quote!(writer.tolerant(#count, |_writer, _at| #write)),
    )
}

fn circular(parsed: &Parsed<'_>, members: &[Member<'_>]) -> TokenStream {
    let (path, (count, read, write)) = (path(), in_order(members));
    implement(parsed, "CircularMembers", |message| {
        quote! {
            const COUNT: u8 = #count;

            fn read_members(_members: &mut #path::Members<'_, #message>) -> Result<Self, #path::Error> {
                #read
            }

            fn write_member(&self, _at: u8, _writer: &mut #path::Writer<'_>) -> Result<(), #path::Error> {
                #write
            }
        }
    })
}

fn union(parsed: &Parsed<'_>, variants: &[(u16, &Ident)]) -> TokenStream {
    let (tags, names): (Vec<_>, Vec<_>) = variants.iter().copied().unzip();
    nullable(
        parsed,
        |path| {
            quote! {
                reader.variant(|reader, tag| match tag {
                    #(#tags => #path::MemoryPack::read(reader).map(Self::#names),)*
                    unknown => Err(#path::Error::Tag(unknown)),
                })
            }
        },
        |path| {
            quote! {
                match self {
                    #(Self::#names(value) => {
                        writer.union(#tags)?;
                        #path::MemoryPack::write(value, writer)
                    })*
                }
            }
        },
    )
}

/// What is written as its bytes in memory.
fn of_unmanaged(parsed: &Parsed<'_>, absent: &TokenStream) -> TokenStream {
    let path = path();
    let whole = implement(parsed, "MemoryPack", |message| {
        quote! {
            const LEAST: usize = <Self as #path::Unmanaged>::SIZE;

            fn read(reader: &mut #path::Reader<#message>) -> Result<Self, #path::Error> {
                reader.value()
            }

            fn write(&self, writer: &mut #path::Writer<'_>) -> Result<(), #path::Error> {
                writer.value(*self)
            }

            fn absent() -> Result<Self, #path::Error> {
                #absent
            }
        }
    });
    let nullable = implement(parsed, "Nullable", |message| {
        quote! {
            const LEAST_NULLABLE: usize = <Option<Self> as #path::Unmanaged>::SIZE;

            fn read_nullable(reader: &mut #path::Reader<#message>) -> Result<Option<Self>, #path::Error> {
                reader.nullable()
            }

            fn write_nullable(value: Option<&Self>, writer: &mut #path::Writer<'_>) -> Result<(), #path::Error> {
                writer.nullable(value.copied())
            }
        }
    });
    quote!(#whole #nullable)
}

fn integer(parsed: &Parsed<'_>, repr: &Ident, variants: &[&Ident]) -> TokenStream {
    let (path, name) = (path(), parsed.name);
    let whole =
        of_unmanaged(parsed, &quote!(<Self as #path::Unmanaged>::get(&0_u64.to_le_bytes()[..size_of::<#repr>()])));
    quote! {
        #[automatically_derived]
        #[allow(clippy::all, clippy::pedantic)]
        impl #path::Unmanaged for #name {
            const SIZE: usize = <#repr as #path::Unmanaged>::SIZE;
            const ALIGN: usize = <#repr as #path::Unmanaged>::ALIGN;

            fn get(bytes: &[u8]) -> Result<Self, #path::Error> {
                let value = <#repr as #path::Unmanaged>::get(bytes)?;
                let known = [#(Self::#variants),*].into_iter().find(|known| *known as #repr == value);
                known.ok_or(#path::Error::Value(value as i64))
            }

            fn put(self, bytes: &mut [u8]) -> Result<(), #path::Error> {
                #path::Unmanaged::put(self as #repr, bytes)
            }
        }

        #whole
    }
}

fn unmanaged(parsed: &Parsed<'_>, members: &[Member<'_>]) -> TokenStream {
    let (path, name) = (path(), parsed.name);
    let names: Vec<_> = members.iter().map(|member| member.name).collect();
    let types: Vec<_> = members.iter().map(|member| member.ty).collect();
    let whole = of_unmanaged(parsed, &quote!(Ok(Self { #(#names: #path::MemoryPack::absent()?,)* })));
    // Offset of each member, and of the end before it is padded.
    let offsets: Vec<_> = (0..=members.len()).map(|at| format_ident!("AT_{at}")).collect();
    let (starts, ends, end) = (&offsets[..members.len()], &offsets[1..], &offsets[members.len()]);
    quote! {
        const _: () = {
            const AT_0: usize = 0;
            #(const #ends: usize = #starts.next_multiple_of(<#types as #path::Unmanaged>::ALIGN)
                + <#types as #path::Unmanaged>::SIZE;)*

            #[automatically_derived]
            #[allow(clippy::all, clippy::pedantic)]
            impl #path::Unmanaged for #name {
                const SIZE: usize = #end.next_multiple_of(Self::ALIGN);
                const ALIGN: usize = {
                    let mut most = 1;
                    #(if <#types as #path::Unmanaged>::ALIGN > most {
                        most = <#types as #path::Unmanaged>::ALIGN;
                    })*
                    most
                };

                fn get(bytes: &[u8]) -> Result<Self, #path::Error> {
                    if bytes.len() != Self::SIZE {
                        return Err(#path::Error::Truncated);
                    }
                    Ok(Self {
                        #(#names: <#types as #path::Unmanaged>::get(
                            &bytes[#ends - <#types as #path::Unmanaged>::SIZE..#ends],
                        )?,)*
                    })
                }

                fn put(self, bytes: &mut [u8]) -> Result<(), #path::Error> {
                    if bytes.len() != Self::SIZE {
                        return Err(#path::Error::NoRoom);
                    }
                    bytes.fill(0);
                    #(<#types as #path::Unmanaged>::put(
                        self.#names,
                        &mut bytes[#ends - <#types as #path::Unmanaged>::SIZE..#ends],
                    )?;)*
                    Ok(())
                }
            }
        };

        #whole
    }
}

fn message(parsed: &Parsed<'_>, members: &[Member<'_>]) -> TokenStream {
    let (path, name, text) = (path(), parsed.name, parsed.name.unraw().to_string());
    let names: Vec<_> = members.iter().map(|member| member.name).collect();
    let declared = members.iter().map(|member| {
        let (name, of_option) = (dot_net(member.name), member.of_option());
        let (ty, nullable) = (of_option.unwrap_or(member.ty), of_option.is_some());
        quote!(#path::MessageMember { name: #name, scalar: <#ty as #path::Fixed>::SCALAR, nullable: #nullable })
    });
    quote! {
        #[automatically_derived]
        #[allow(clippy::all, clippy::pedantic)]
        impl #path::Message for #name {
            const NAME: &'static str = #text;
            const MEMBERS: &'static [#path::MessageMember] = &[#(#declared),*];

            fn read_members(reader: &mut #path::Reader<'_>) -> Result<Self, #path::Error> {
                Ok(Self { #(#names: #path::MemoryPack::read(reader)?,)* })
            }

            fn write_members(&self, writer: &mut #path::Writer<'_>) -> Result<(), #path::Error> {
                #(#path::MemoryPack::write(&self.#names, writer)?;)*
                Ok(())
            }
        }
    }
}

/// `message_id` as `MessageId`.
fn dot_net(name: &Ident) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + letters.as_str())
    };
    name.unraw().to_string().split('_').map(word).collect()
}
