//! What a declaration says, and what is wrong with it.

use syn::{
    Attribute, Data, DeriveInput, Error, Field, Fields, GenericArgument, GenericParam, Generics, Ident, LitInt,
    PathArguments, Result, Type, spanned::Spanned as _,
};

/// The most members of an object.
const MAX_MEMBERS: usize = 249;

/// A declaration that has a form.
pub(crate) struct Parsed<'i> {
    pub(crate) name: &'i Ident,
    pub(crate) generics: &'i Generics,
    pub(crate) shape: Shape<'i>,
}

pub(crate) enum Shape<'i> {
    /// A struct: one of the kinds of objects, or the image of a .NET struct.
    Struct { kind: Kind, members: Vec<Member<'i>> },
    /// An enum without fields, of this integer.
    Integer { repr: Ident, variants: Vec<&'i Ident> },
    /// An enum whose variants are types, by tag.
    Union(Vec<(u16, &'i Ident)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    /// An object of which every member has one size.
    Message,
    Tolerant,
    Circular,
    Unmanaged,
}

pub(crate) struct Member<'i> {
    pub(crate) name: &'i Ident,
    pub(crate) ty: &'i Type,
    /// Its place among the members of a tolerant or circular object.
    pub(crate) order: u8,
}

const KINDS: [(&str, Kind); 4] = [
    ("message", Kind::Message),
    ("tolerant", Kind::Tolerant),
    ("circular", Kind::Circular),
    ("unmanaged", Kind::Unmanaged),
];

/// Integers that an enum can be.
const INTEGERS: [&str; 8] = ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"];

pub(crate) fn parse(input: &DeriveInput) -> Result<Parsed<'_>> {
    let DeriveInput { ident: name, generics, attrs, data, .. } = input;
    if generics.lifetimes().count() > 1 {
        return Err(Error::new(generics.span(), "one lifetime at most: that of the message"));
    }
    if let Some(GenericParam::Const(param)) = generics.params.iter().find(|p| matches!(p, GenericParam::Const(_))) {
        return Err(Error::new(param.span(), "no constant parameters: a type has one layout"));
    }
    let shape = match data {
        Data::Struct(data) => structure(attrs, &data.fields, name)?,
        Data::Enum(data) if data.variants.iter().all(|variant| variant.fields.is_empty()) => {
            only(attrs, &[])?;
            let repr = repr(attrs)?
                .ok_or_else(|| Error::new(name.span(), "an enum needs its integer, as in #[repr(i32)]: int in .NET"))?;
            Shape::Integer { repr, variants: data.variants.iter().map(|variant| &variant.ident).collect() }
        }
        Data::Enum(data) => {
            only(attrs, &[])?;
            let mut tags = Vec::<(u16, &Ident)>::new();
            for variant in &data.variants {
                let Fields::Unnamed(fields) = &variant.fields else {
                    return Err(Error::new(variant.span(), "a variant of a union has one type, as in A(Of)"));
                };
                if fields.unnamed.len() != 1 {
                    return Err(Error::new(fields.span(), "a variant of a union has one type, as in A(Of)"));
                }
                let tag = number(&variant.attrs, "tag")?.ok_or_else(|| {
                    Error::new(variant.span(), "a variant of a union needs its tag, as in #[memory_pack(tag = 0)]")
                })?;
                if tags.iter().any(|(known, _)| *known == tag) {
                    return Err(Error::new(variant.span(), format!("tag {tag} is taken")));
                }
                tags.push((tag, &variant.ident));
            }
            Shape::Union(tags)
        }
        Data::Union(_) => return Err(Error::new(name.span(), "a union of MemoryPack is an enum in Rust")),
    };
    let has_size = match &shape {
        Shape::Integer { .. } => true,
        Shape::Struct { kind, .. } => matches!(kind, Kind::Unmanaged | Kind::Message),
        Shape::Union(_) => false,
    };
    if has_size && !generics.params.is_empty() {
        return Err(Error::new(generics.span(), "no parameters: this type has one size"));
    }
    Ok(Parsed { name, generics, shape })
}

fn structure<'i>(attrs: &[Attribute], fields: &'i Fields, name: &Ident) -> Result<Shape<'i>> {
    let words = KINDS.map(|(word, _)| word);
    let kind = only(attrs, &words)?.and_then(|word| KINDS.iter().find(|(known, _)| *known == word));
    let kind = kind.map_or(Kind::Object, |(_, kind)| *kind);
    let fields = match fields {
        Fields::Named(fields) => Some(&fields.named),
        Fields::Unit => None,
        Fields::Unnamed(fields) => {
            return Err(Error::new(fields.span(), "members have names; a tuple of .NET is one of Rust"));
        }
    };
    let ordered = matches!(kind, Kind::Tolerant | Kind::Circular);
    let mut members = Vec::<Member<'_>>::new();
    for field in fields.into_iter().flatten() {
        let member = member(field, ordered, members.last().map_or(0, |last| usize::from(last.order) + 1))?;
        if members.last().is_some_and(|last| last.order >= member.order) {
            return Err(Error::new(field.span(), "members stand in their order, each with one of its own"));
        }
        members.push(member);
    }
    if members.is_empty() && matches!(kind, Kind::Unmanaged | Kind::Message) {
        return Err(Error::new(name.span(), "it has no members"));
    }
    Ok(Shape::Struct { kind, members })
}

fn member(field: &Field, ordered: bool, next: usize) -> Result<Member<'_>> {
    let order = number(&field.attrs, "order")?;
    if order.is_some() && !ordered {
        return Err(Error::new(field.span(), "only members of tolerant and circular objects have an order"));
    }
    let order = order.map_or(next, usize::from);
    if order >= MAX_MEMBERS {
        return Err(Error::new(field.span(), format!("an object has {MAX_MEMBERS} members at most")));
    }
    let name = field.ident.as_ref().expect("fields with names");
    Ok(Member { name, ty: &field.ty, order: order as u8 })
}

impl Member<'_> {
    /// The `T` of an `Option<T>`.
    pub(crate) fn of_option(&self) -> Option<&Type> {
        let Type::Path(path) = self.ty else { return None };
        let last = path.path.segments.last().filter(|last| last.ident == "Option")?;
        let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
        arguments.args.iter().find_map(|argument| match argument {
            GenericArgument::Type(ty) => Some(ty),
            _ => None,
        })
    }
}

fn ours(attrs: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attrs.iter().filter(|attribute| attribute.path().is_ident("memory_pack"))
}

/// The one word that an attribute may have.
fn only(attrs: &[Attribute], words: &[&'static str]) -> Result<Option<&'static str>> {
    let mut found = None;
    for attribute in ours(attrs) {
        attribute.parse_nested_meta(|meta| {
            let word = words.iter().find(|word| meta.path.is_ident(word));
            let word = word.filter(|_| found.is_none());
            found = Some(*word.ok_or_else(|| match words {
                [] => meta.error("an enum has no such attribute"),
                words => meta.error(format!("one word of: {}", words.join(", "))),
            })?);
            Ok(())
        })?;
    }
    Ok(found)
}

/// `N` of `#[memory_pack(key = N)]`.
fn number(attrs: &[Attribute], key: &str) -> Result<Option<u16>> {
    let mut found = None;
    for attribute in ours(attrs) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident(key) || found.is_some() {
                return Err(meta.error(format!("{key} = N, once, is all that can stand here")));
            }
            found = Some(meta.value()?.parse::<LitInt>()?.base10_parse()?);
            Ok(())
        })?;
    }
    Ok(found)
}

/// The integer of `#[repr(..)]`.
fn repr(attrs: &[Attribute]) -> Result<Option<Ident>> {
    let mut found = None;
    for attribute in attrs.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            if let Some(word) = meta.path.get_ident().filter(|word| INTEGERS.iter().any(|known| *word == known)) {
                found = Some(word.clone());
            }
            Ok(())
        })?;
    }
    Ok(found)
}
