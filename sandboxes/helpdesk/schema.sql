CREATE TABLE customers (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    email TEXT NOT NULL UNIQUE,
    city TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE products (
    name TEXT PRIMARY KEY,
    price INTEGER NOT NULL CHECK (price > 0),
    stock INTEGER NOT NULL CHECK (stock >= 0)
) WITHOUT ROWID;

CREATE TABLE orders (
    id TEXT PRIMARY KEY,
    customer TEXT NOT NULL REFERENCES customers (id),
    product TEXT NOT NULL REFERENCES products (name),
    quantity INTEGER NOT NULL CHECK (quantity > 0),
    total INTEGER NOT NULL CHECK (total > 0),
    status TEXT NOT NULL CHECK (status IN ('processing', 'shipped', 'delivered', 'cancelled')),
    address TEXT NOT NULL,
    placed TEXT NOT NULL,
    delivered TEXT,
    refunded INTEGER NOT NULL DEFAULT 0 CHECK (refunded BETWEEN 0 AND total)
) WITHOUT ROWID;

CREATE INDEX orders_of_customer ON orders (customer);

CREATE TABLE policies (
    topic TEXT PRIMARY KEY,
    days INTEGER,
    max_refund INTEGER
) WITHOUT ROWID;
