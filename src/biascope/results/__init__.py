"""What came out: numbers with uncertainty, results, the register of measurements, claims, pictures, pages."""
