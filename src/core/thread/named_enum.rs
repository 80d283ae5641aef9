//! Enums whose variants have names.

/// Declares an enum with the name of each variant, as in settings, in logs and on the wire.
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident { $($(#[$of_variant:meta])* $variant:ident = $id:literal,)+ }
    ) => {
        $(#[$attribute])*
        $visibility enum $name { $($(#[$of_variant])* $variant,)+ }

        #[allow(dead_code, reason = "not every enum needs all of these")]
        impl $name {
            $visibility const ALL: [$name; [$($id),+].len()] = [$($name::$variant),+];

            /// The name of this variant.
            $visibility fn id(self) -> &'static str {
                match self { $($name::$variant => $id,)+ }
            }

            /// The variant of this name.
            $visibility fn parse(id: &str) -> Option<$name> {
                $name::ALL.into_iter().find(|it| it.id() == id)
            }
        }
    };
}
