//! Parser of expressions, by operator precedence (docs/spec/steps.md, section 3.2).

use super::ExpressionError;
use super::lexer::{Token, tokens};
use super::template::Part;

/// Maximum depth of an expression, and maximum number of operators of one precedence in a row.
const MAX_DEPTH: usize = 64;

const RESERVED: [&str; 34] = [
    "array",
    "as",
    "break",
    "case",
    "const",
    "continue",
    "default",
    "else",
    "fallthrough",
    "float",
    "for",
    "func",
    "function",
    "goto",
    "if",
    "import",
    "in",
    "int",
    "let",
    "loop",
    "map",
    "namespace",
    "number",
    "object",
    "package",
    "range",
    "return",
    "string",
    "struct",
    "switch",
    "type",
    "var",
    "void",
    "while",
];

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Number(f64),
    Text(Vec<Part>),
    Name(String),
    Array(Vec<Node>),
    Object(Vec<(Node, Node)>),
    Attribute(Box<Node>, String),
    Index(Box<Node>, Box<Node>),
    Call(String, Vec<Node>),
    Unary(&'static str, Box<Node>),
    Binary(&'static str, Box<Node>, Box<Node>),
}

pub(super) fn parse(text: &str) -> Result<Node, ExpressionError> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0 };
    let node = parser.binary(0)?;
    match parser.peek() {
        Token::End => Ok(node),
        _ => Err(parser.expected("the end")),
    }
}

/// Binary operators by precedence, lowest first.
const LEVELS: [&[&str]; 5] = [&["||"], &["&&"], &["==", "!=", "<", "<=", ">", ">="], &["+", "-"], &["*", "/", "%"]];

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).map_or(&Token::End, |(token, _)| token)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn take(&mut self, symbol: &str) -> bool {
        let found = matches!(self.peek(), Token::Symbol(next) if *next == symbol);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: &str) -> Result<(), ExpressionError> {
        if self.take(symbol) { Ok(()) } else { Err(self.expected(&format!("`{symbol}`"))) }
    }

    fn expected(&self, expectation: &str) -> ExpressionError {
        let offset = self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |(_, offset)| *offset);
        let got = match self.peek() {
            Token::Number(_) => "a number".to_owned(),
            Token::Text(_) => "a string".to_owned(),
            Token::Name(name) => format!("`{name}`"),
            Token::Symbol(symbol) => format!("`{symbol}`"),
            Token::End => "the end".to_owned(),
        };
        ExpressionError::Syntax { message: format!("expected {expectation}, got {got}"), offset }
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T, ExpressionError>) -> Result<T, ExpressionError> {
        if self.depth >= MAX_DEPTH {
            return Err(self.expected("an expression with less nesting"));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    fn binary(&mut self, level: usize) -> Result<Node, ExpressionError> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        let mut chain = 0;
        loop {
            let found = match self.peek() {
                Token::Symbol(symbol) => operators.iter().find(|operator| *operator == symbol),
                _ => None,
            };
            let Some(operator) = found else { return Ok(left) };
            chain += 1;
            if chain > MAX_DEPTH {
                return Err(self.expected("fewer operators in a row"));
            }
            self.at += 1;
            let right = self.binary(level + 1)?;
            left = Node::Binary(operator, Box::new(left), Box::new(right));
        }
    }

    fn unary(&mut self) -> Result<Node, ExpressionError> {
        for operator in ["+", "-", "!"] {
            if self.take(operator) {
                let operand = self.nested(Self::unary)?;
                return Ok(Node::Unary(operator, Box::new(operand)));
            }
        }
        self.postfix()
    }

    fn postfix(&mut self) -> Result<Node, ExpressionError> {
        let mut node = self.primary()?;
        for _ in 0..=MAX_DEPTH {
            if self.take(".") {
                let Token::Name(name) = self.peek().clone() else { return Err(self.expected("a name")) };
                self.at += 1;
                node = Node::Attribute(Box::new(node), name);
            } else if self.take("[") {
                let index = self.nested(|parser| parser.binary(0))?;
                self.expect("]")?;
                node = Node::Index(Box::new(node), Box::new(index));
            } else {
                return Ok(node);
            }
        }
        Err(self.expected("fewer attributes and indexes in a row"))
    }

    fn primary(&mut self) -> Result<Node, ExpressionError> {
        let at = self.at;
        match self.next() {
            Token::Number(value) => Ok(Node::Number(value)),
            Token::Text(parts) => Ok(Node::Text(parts)),
            Token::Name(name) => match name.as_str() {
                "null" => Ok(Node::Null),
                "true" => Ok(Node::Bool(true)),
                "false" => Ok(Node::Bool(false)),
                word if RESERVED.contains(&word) => {
                    self.at = at;
                    Err(self.expected("a value, not a reserved word"))
                }
                _ if self.take("(") => Ok(Node::Call(name, self.list(")", false)?)),
                _ => Ok(Node::Name(name)),
            },
            Token::Symbol("(") => {
                let node = self.nested(|parser| parser.binary(0))?;
                self.expect(")")?;
                Ok(node)
            }
            Token::Symbol("[") => Ok(Node::Array(self.list("]", true)?)),
            Token::Symbol("{") => self.object(),
            _ => {
                self.at = at;
                Err(self.expected("a value"))
            }
        }
    }

    fn list(&mut self, end: &str, allows_trailing_comma: bool) -> Result<Vec<Node>, ExpressionError> {
        let mut items = Vec::new();
        if self.take(end) {
            return Ok(items);
        }
        loop {
            items.push(self.nested(|parser| parser.binary(0))?);
            if self.take(end) {
                return Ok(items);
            }
            self.expect(",")?;
            if allows_trailing_comma && self.take(end) {
                return Ok(items);
            }
        }
    }

    fn object(&mut self) -> Result<Node, ExpressionError> {
        let mut entries = Vec::new();
        while !self.take("}") {
            let key = match self.next() {
                Token::Name(name) => Node::Text(vec![Part::Literal(name)]),
                Token::Text(parts) => Node::Text(parts),
                Token::Symbol("(") => {
                    let key = self.nested(|parser| parser.binary(0))?;
                    self.expect(")")?;
                    key
                }
                _ => {
                    self.at -= 1;
                    return Err(self.expected("a key"));
                }
            };
            self.expect(":")?;
            entries.push((key, self.nested(|parser| parser.binary(0))?));
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(Node::Object(entries))
    }
}
