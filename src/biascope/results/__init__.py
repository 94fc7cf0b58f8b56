"""What was found: numbers with uncertainty, results, the register of measurements, claims, pictures, pages."""
