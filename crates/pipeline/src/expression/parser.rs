//! A recursive descent parser. The limit on tokens also limits the depth.

use regex::Regex;

use super::error::{ExpressionError, ExpressionErrorKind};
use super::lexer::{Token, TokenKind};

#[derive(Debug, Clone)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Text(String),
    Pattern(Box<Regex>),
    Variable(String),
    Input(String),
    Binary { operator: Operator, offset: usize, left: Box<Node>, right: Box<Node> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    NotEqual,
    Match,
    NotMatch,
    And,
    Or,
}

impl Operator {
    fn from_token(kind: &TokenKind) -> Option<Self> {
        Some(match kind {
            TokenKind::Equal => Self::Equal,
            TokenKind::NotEqual => Self::NotEqual,
            TokenKind::Match => Self::Match,
            TokenKind::NotMatch => Self::NotMatch,
            TokenKind::And => Self::And,
            TokenKind::Or => Self::Or,
            _ => return None,
        })
    }

    /// An operator with a higher value binds tighter.
    fn precedence(self) -> u8 {
        match self {
            Self::Or => 0,
            Self::And => 1,
            Self::Equal | Self::NotEqual | Self::Match | Self::NotMatch => 2,
        }
    }
}

impl Node {
    /// Visits operands from left to right.
    pub(super) fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a Node)) {
        visit(self);
        if let Self::Binary { left, right, .. } = self {
            left.walk(visit);
            right.walk(visit);
        }
    }
}

/// Parses the tokens of an expression. `end` is the length of its text: the position of an error at the end.
pub(super) fn parse(tokens: &[Token], end: usize) -> Result<Node, ExpressionError> {
    if tokens.is_empty() {
        return Err(ExpressionError::new(ExpressionErrorKind::Empty, 0));
    }
    let mut parser = Parser { tokens, next: 0, end };
    let node = parser.binary(0)?;
    match parser.peek() {
        None => Ok(node),
        Some(token) => Err(unexpected(token)),
    }
}

struct Parser<'a> {
    tokens: &'a [Token],
    next: usize,
    end: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.next)
    }

    fn take(&mut self) -> Option<&'a Token> {
        let token = self.peek();
        self.next += 1;
        token
    }

    /// Parses an operand, and the operators of at least `precedence` that follow it. Operators are left-associative.
    fn binary(&mut self, precedence: u8) -> Result<Node, ExpressionError> {
        let mut left = self.primary()?;
        while let Some(token) = self.peek()
            && let Some(operator) = Operator::from_token(&token.kind)
            && operator.precedence() >= precedence
        {
            self.next += 1;
            let right = self.binary(operator.precedence() + 1)?;
            left = Node::Binary { operator, offset: token.offset, left: Box::new(left), right: Box::new(right) };
        }
        Ok(left)
    }

    fn primary(&mut self) -> Result<Node, ExpressionError> {
        let Some(token) = self.take() else {
            return Err(ExpressionError::new(ExpressionErrorKind::MissingValue, self.end));
        };
        Ok(match &token.kind {
            TokenKind::Open => {
                let node = self.binary(0)?;
                match self.take() {
                    Some(Token { kind: TokenKind::Close, .. }) => node,
                    Some(other) => return Err(unexpected(other)),
                    None => return Err(ExpressionError::new(ExpressionErrorKind::Unclosed, token.offset)),
                }
            }
            TokenKind::Null => Node::Null,
            TokenKind::Bool(value) => Node::Bool(*value),
            TokenKind::Text(text) => Node::Text(text.clone()),
            TokenKind::Pattern(regex) => Node::Pattern(regex.clone()),
            TokenKind::Variable(name) => Node::Variable(name.clone()),
            TokenKind::Input(id) => Node::Input(id.clone()),
            _ => return Err(unexpected(token)),
        })
    }
}

fn unexpected(token: &Token) -> ExpressionError {
    ExpressionError::new(ExpressionErrorKind::Unexpected(token.text.clone()), token.offset)
}
