//! The value of a text in JSON, read piece by piece.

/// Turns the pieces of one text, its quotes included, into what it says.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonText {
    /// An escape that is not complete.
    escape: String,
}

impl JsonText {
    /// Reads on; of an escape that is cut nothing comes before its end.
    pub(super) fn feed(&mut self, piece: &str) -> String {
        let mut text = String::new();
        for character in piece.chars() {
            self.read(character, &mut text);
        }
        text
    }

    fn read(&mut self, character: char, text: &mut String) {
        // The second half of a character beyond the basic plane is missing.
        let expected = match self.escape.len() {
            6 => Some('\\'),
            7 => Some('u'),
            _ => None,
        };
        if expected.is_some_and(|expected| expected != character) {
            let rest = self.escape.split_off(6);
            self.escape.clear();
            text.push(char::REPLACEMENT_CHARACTER);
            for character in rest.chars().chain([character]) {
                self.read(character, text);
            }
            return;
        }
        match character {
            '"' if self.escape.is_empty() => {}
            '\\' if self.escape.is_empty() => self.escape.push(character),
            _ if self.escape.is_empty() => text.push(character),
            _ => {
                self.escape.push(character);
                self.end_escape(text);
            }
        }
    }

    /// Takes the escape if it is complete.
    fn end_escape(&mut self, text: &mut String) {
        let is_long = self.escape.as_bytes().get(1) == Some(&b'u');
        let is_half = self.escape.len() == 6 && is_first_half(&self.escape);
        let is_complete = match self.escape.len() {
            0 | 1 | 7..12 => false,
            6 => !is_half,
            len => !is_long || len >= 12,
        };
        if !is_complete {
            return;
        }
        let quoted = format!("\"{}\"", self.escape);
        match serde_json::from_str::<String>(&quoted) {
            Ok(said) => text.push_str(&said),
            Err(_) => text.push(char::REPLACEMENT_CHARACTER),
        }
        self.escape.clear();
    }
}

/// Whether `\uXXXX` is the first half of a character beyond the basic plane.
fn is_first_half(escape: &str) -> bool {
    let code = u32::from_str_radix(&escape[2..], 16);
    code.is_ok_and(|code| (0xd800..0xdc00).contains(&code))
}
