"""Published models as model sections: one module a family, and the registry that collects them."""
