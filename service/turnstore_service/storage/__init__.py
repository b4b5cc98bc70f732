"""What is kept: values, errors and rules of writing, and the store on MongoDB."""
