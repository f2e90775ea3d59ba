//! netbox
